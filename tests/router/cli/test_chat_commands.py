"""What is typed in a conversation: messages over several lines, and commands with a slash."""

from __future__ import annotations

import json
import os
import pty
import signal
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from router.cli import chat_commands
from router.cli.chat_input import quiet_keys, read_message
from router.cli.conversation import SETTINGS, Conversation


def typing(*lines: str) -> Callable[[str], str]:
    left = list(lines)

    def read_line(_prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read_line


@pytest.fixture
def talk() -> Conversation:
    """Two questions and their answers."""
    talk = Conversation("tiny")
    for question, answer in (("one", "1"), ("two", "2")):
        talk.ask(question)
        talk.answered(answer)
    return talk


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["plain"], "plain"),
        (["  padded  "], "padded"),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""one line"""'], "one line"),
        (['"""/not a command', '"""'], "/not a command"),
        ([""], ""),
    ],
)
def test_a_message_may_have_several_lines(lines: list[str], message: str) -> None:
    assert read_message(typing(*lines)) == message


def test_input_that_ends_in_a_block_ends_the_conversation() -> None:
    with pytest.raises(EOFError):
        read_message(typing('"""', "a"))


def test_help_names_every_command_and_how_lines_are_joined(talk: Conversation) -> None:
    text = chat_commands.run("/help", talk).text
    for name in chat_commands.names():
        assert f"{name} " in text
    assert '"""' in text
    assert "Ctrl-C" in text


def test_undo_takes_back_the_last_question_with_its_answer(talk: Conversation) -> None:
    assert chat_commands.run("/undo", talk).text == "taken back: two"
    assert [message["content"] for message in talk.messages] == ["one", "1"]
    chat_commands.run("/undo", talk)
    assert chat_commands.run("/undo", talk).text == "nothing was said yet"


def test_clear_forgets_what_was_said_and_keeps_what_was_set(talk: Conversation) -> None:
    chat_commands.run("/system Be brief.", talk)
    chat_commands.run("/set temperature 0", talk)
    assert "2 messages" in chat_commands.run("/clear", talk).text
    assert talk.request(stream=False) == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}],
        "temperature": 0.0,
    }
    chat_commands.run("/system -", talk)
    assert talk.request()["messages"] == []


def test_settings_are_shown_changed_and_given_back(talk: Conversation) -> None:
    assert chat_commands.run("/set max_tokens 20", talk).text == "max_tokens = 20"
    shown = chat_commands.run("/set", talk).text
    assert all(name in shown for name in SETTINGS)
    assert "20" in shown
    assert talk.request()["max_tokens"] == 20
    assert chat_commands.run("/set max_tokens", talk).text == "max_tokens is the model's again"
    assert "max_tokens" not in talk.request()
    assert "is no value for top_p" in chat_commands.run("/set top_p much", talk).text
    assert "there is no setting 'heat'" in chat_commands.run("/set heat 1", talk).text


def test_a_saved_conversation_is_a_request_that_asks_for_the_same(talk: Conversation, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert "written to" in chat_commands.run(f"/save {file}", talk).text
    assert json.loads(file.read_text()) == talk.request(stream=False)
    assert "is there already" in chat_commands.run(f"/save {file}", talk).text
    assert "cannot write" in chat_commands.run(f"/save {tmp_path}/no/where", talk).text
    assert "say where" in chat_commands.run("/save", talk).text


def test_models_change_and_the_end_is_the_end(talk: Conversation) -> None:
    assert chat_commands.run("/model other", talk).model == "other"
    assert "you talk with tiny" in chat_commands.run("/model", talk).text
    assert chat_commands.run("/bye", talk).is_end
    assert chat_commands.run("/by", talk).is_end, "a beginning is enough where it means one command"
    assert "there is no /s;" in chat_commands.run("/s x", talk).text


def test_an_answer_without_text_that_calls_tools_is_remembered_with_them() -> None:
    talk = Conversation("tiny")
    talk.ask("x")
    talk.answered("", [{"id": "c"}])
    assert talk.messages[-1] == {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}


@pytest.mark.parametrize("end", [None, KeyboardInterrupt, signal.SIGTERM])
def test_keys_pressed_during_an_answer_do_not_show_and_wait_for_the_prompt(end: object) -> None:
    ours, theirs = pty.openpty()

    def echoes() -> bool:
        return bool(termios.tcgetattr(theirs)[3] & termios.ECHO)

    def answer() -> None:
        with quiet_keys(theirs):
            assert not echoes()
            os.write(ours, b"next\n")
            if end is signal.SIGTERM:
                signal.raise_signal(signal.SIGTERM)
            elif end is not None:
                raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGTERM)
    try:
        if end is None:
            answer()
        else:
            with pytest.raises((KeyboardInterrupt, SystemExit)):
                answer()
        assert echoes(), "the terminal is as it was"
        assert signal.getsignal(signal.SIGTERM) is handler
        assert os.read(theirs, 100) == b"next\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_keys_that_come_from_no_terminal_need_nothing() -> None:
    read, write = os.pipe()
    with quiet_keys(read):
        os.write(write, b"x")
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.close(write)
