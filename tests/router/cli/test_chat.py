"""`corral chat` prints the answer and nothing else where it is piped, and holds a conversation where somebody types."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.cli.chat_input import PROMPT
from router.cli.output import ExitCode
from tests.fakes.corral_http import FakeCorral, Reply, as_chunks, refusal, said
from tests.router.cli.conftest import Corral
from tests.support.terminals import terminal

CHATS = "/v1/chat/completions"
USAGE = {"prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 20}}
LAST = {"model": "tiny", "choices": [], "usage": USAGE, "timings": {"predicted_per_second": 45.13}}
ANSWER = as_chunks(said("Hello"), said(" there", finish="stop"), LAST)


@pytest.fixture
def tiny(fake: FakeCorral) -> FakeCorral:
    """A server with one model, which is loaded and says `Hello there`."""
    entry = {"id": "tiny", "parent": None, "state": "ready", "capabilities": ["chat", "completion"]}
    fake.answers("GET", "/v1/models", {"data": [entry]})
    fake.answers("GET", "/v1/models/tiny", entry)
    fake.answers("POST", CHATS, ANSWER)
    return fake


# --- one question -----------------------------------------------------------------------------------------


def test_the_answer_alone_is_printed(tiny: FakeCorral, corral: Corral) -> None:
    done = corral("chat", "tiny", "who", "are you?")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Hello there\n", "")
    assert tiny.bodies("POST", CHATS) == [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "who are you?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_the_message_may_come_from_a_pipe_alone_or_among_words(tiny: FakeCorral, corral: Corral) -> None:
    corral("chat", "tiny", typed="from a pipe\n")
    corral("chat", "tiny", "Sum this up:", "-", typed="a\nb\n")
    corral("chat", "tiny", "words", typed="is not read")
    texts = [body["messages"][0]["content"] for body in tiny.bodies("POST", CHATS)]
    assert texts == ["from a pipe", "Sum this up:\n\na\nb", "words"]


def test_settings_and_the_system_text_go_with_the_question(tiny: FakeCorral, corral: Corral) -> None:
    done = corral("chat", "tiny", "x", "-s", "Be brief.", "--set", "temperature=0.5", "--set", "max_tokens=7")
    assert done.exit_code == 0
    (body,) = tiny.bodies("POST", CHATS)
    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_json_is_the_whole_reply_without_a_stream(tiny: FakeCorral, corral: Corral) -> None:
    reply = {"choices": [{"message": {"content": "Hi"}}], "usage": USAGE}
    tiny.answers("POST", CHATS, reply)
    assert json.loads(corral("chat", "tiny", "x", "--json").stdout) == reply
    assert "stream" not in tiny.bodies("POST", CHATS)[0]


def test_thoughts_are_no_part_of_a_piped_answer_and_calls_are_told(tiny: FakeCorral, corral: Corral) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": '{"city":'}}
    more = {"index": 0, "function": {"arguments": ' "Paris"}'}}
    tiny.answers(
        "POST",
        CHATS,
        as_chunks(
            said(reasoning_content="hmm"),
            said("Let me see."),
            said(tool_calls=[call]),
            said(tool_calls=[more], finish="tool_calls"),
        ),
    )
    assert corral("chat", "tiny", "x").stdout == 'Let me see.\ncalls get_weather({"city": "Paris"})\n'


def test_an_answer_gives_the_terminal_no_orders(tiny: FakeCorral, corral: Corral) -> None:
    tiny.answers("POST", CHATS, as_chunks(said("a\x1b[2J\n\tb"), said("[bold]\r", finish="stop")))
    assert corral("chat", "tiny", "x").stdout == "a\\x1b[2J\n\tb[bold]\n"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (as_chunks(said("Hel"), {"error": {"message": "the worker died"}}), "the answer broke off: the worker died"),
        (as_chunks(said("Hel"), is_whole=False), "broke off: the connection ended"),
    ],
)
def test_an_answer_that_broke_off_is_a_failure(tiny: FakeCorral, corral: Corral, reply: Any, words: str) -> None:
    tiny.answers("POST", CHATS, reply)
    done = corral("chat", "tiny", "x")
    assert done.exit_code == 1
    assert done.stdout.startswith("Hel")
    assert words in done.stderr


def test_an_empty_answer_is_said_to_be_empty(tiny: FakeCorral, corral: Corral) -> None:
    tiny.answers("POST", CHATS, as_chunks(said(finish="stop")))
    done = corral("chat", "tiny", "x")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "empty" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "typed", "words"),
    [
        (("chat", "tiny"), "", "the message is empty"),
        (("chat", "tiny", "x", "--set", "temprature=1"), "", "there is no setting 'temprature'"),
        (("chat", "tiny", "x", "--set", "top_k=many"), "", "is no value for top_k"),
        (("chat", "tiny", "x", "--set", "seed"), "", "NAME=VALUE"),
        (("chat", "tiny", "x", "--set", "temperature=nan"), "", "is no value for temperature"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(
    tiny: FakeCorral, corral: Corral, arguments: tuple[str, ...], typed: str, words: str
) -> None:
    done = corral(*arguments, typed=typed)
    assert done.exit_code == 2
    assert words in done.stderr
    assert tiny.bodies("POST", CHATS) == []


# --- which model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("able", "words"),
    [(["completion", "embedding"], "base model, which continues text"), (["rerank"], "it is for rerank")],
)
def test_a_model_that_holds_no_conversation_is_told_plainly(
    tiny: FakeCorral, corral: Corral, able: list[str], words: str
) -> None:
    tiny.answers("GET", "/v1/models/tiny", {"id": "tiny", "state": "unloaded", "capabilities": able})
    done = corral("chat", "tiny", "x")
    assert done.exit_code == 1
    assert words in done.stderr


def test_an_unknown_model_has_a_code_of_its_own(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/v1/models/nope", refusal(404, "there is no model named 'nope'", "model_not_found"))
    assert corral("chat", "nope", "x").exit_code == 5


def test_without_a_name_it_is_the_default_or_the_only_loaded_model(
    tiny: FakeCorral, corral: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"id": "other", "parent": None, "state": "unloaded"}
    tiny.answers("GET", "/v1/models", {"data": [other, tiny_entry := {"id": "tiny", "parent": None, "state": "ready"}]})
    tiny.answers("GET", "/v1/models/other", other)
    assert corral("chat", typed="hi").exit_code == 0
    tiny.answers("GET", "/status", {"server": {"default_model": "other"}, "models": []})
    assert corral("chat", typed="hi").exit_code == 0
    assert [body["model"] for body in tiny.bodies("POST", CHATS)] == ["tiny", "other"]
    tiny.answers("GET", "/status", {"server": {"default_model": None}, "models": []})
    tiny.answers("GET", "/v1/models", {"data": [other, tiny_entry | {"state": "unloaded"}]})
    done = corral("chat", typed="hi")
    assert done.exit_code == 2
    assert [" ".join(line.split()) for line in done.stderr.splitlines()] == [
        "corral: say with which model:",
        "corral chat other unloaded",
        "corral chat tiny unloaded",
    ]


# --- a conversation, on a real terminal -------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which typed lines are kept."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "corral"


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_conversation_remembers_what_was_said(tiny: FakeCorral, state: Path) -> None:
    thinking = as_chunks(said(reasoning_content="Let me think."), said("So."), said(finish="stop"), LAST)
    tiny.answers("POST", CHATS, ANSWER, thinking)
    with terminal("chat", "tiny") as shown:
        shown.wait_for(PROMPT)
        shown.press(b"one \\\n")
        shown.wait_for("... ")
        shown.press(b"two\n")
        place = shown.wait_for("2 tokens · 45.1 tokens/s · first after ")
        place = shown.wait_for("prompt 30, 20 of them cached", since=place)
        place = shown.wait_for(PROMPT, since=place)
        shown.press(b'"""three\nfour"""\n')
        place = shown.wait_for("2 tokens", since=place)
        place = shown.wait_for(PROMPT, since=place)
        assert b"Let me think." in shown.seen
        shown.press(b"/undo\n")
        place = shown.wait_for("taken back: three four", since=place)
        shown.wait_for(PROMPT, since=place)
        shown.press(b"\x04")
        assert shown.end() == 0
    first, second = tiny.bodies("POST", CHATS)
    assert first["messages"] == [{"role": "user", "content": "one \ntwo"}]
    assert second["messages"] == [
        *first["messages"],
        {"role": "assistant", "content": "Hello there"},
        {"role": "user", "content": "three\nfour"},
    ]
    history = state / "chat_history"
    assert "four" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_text_that_is_pasted_is_one_message(tiny: FakeCorral, state: Path) -> None:
    with terminal("chat", "tiny", "--no-history") as shown:
        shown.wait_for(PROMPT)
        shown.press(b"\x1b[200~five\nsix\n\x1b[201~\n")
        place = shown.wait_for("Hello there")
        shown.wait_for(PROMPT, since=place)
        shown.press(b"\x04")
        assert shown.end() == 0
    assert [body["messages"][-1]["content"] for body in tiny.bodies("POST", CHATS)] == ["five\nsix"]


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_conversation(tiny: FakeCorral, state: Path, hold: threading.Event) -> None:
    endless = as_chunks(said("It was a dark and"), is_whole=False, hold=hold)
    tiny.answers("POST", CHATS, endless, ANSWER)
    with terminal("chat", "tiny", "--no-history") as shown:
        place = shown.wait_for(PROMPT)
        shown.press(b"\x03")
        place = shown.wait_for("Ctrl-D or /bye leaves", since=place)
        place = shown.wait_for(PROMPT, since=place)
        shown.press(b"tell me\n")
        place = shown.wait_for("dark and", since=place)
        shown.press(b"\x03")
        place = shown.wait_for("stopped; what was said so far stays said", since=place)
        place = shown.wait_for(PROMPT, since=place)
        shown.press(b"go on\n")
        place = shown.wait_for("Hello there", since=place)
        shown.wait_for(PROMPT, since=place)
        shown.press(b"/bye\n")
        assert shown.end() == 0
        assert b"Traceback" not in shown.seen
    assert tiny.bodies("POST", CHATS)[1]["messages"][1] == {"role": "assistant", "content": "It was a dark and"}
    assert not state.exists()


@pytest.mark.slow
def test_a_refused_message_leaves_the_conversation_as_it_was(tiny: FakeCorral, state: Path) -> None:
    tiny.answers("POST", CHATS, refusal(400, "the context is full", "context_length_exceeded"), ANSWER)
    with terminal("chat", "tiny") as shown:
        shown.wait_for(PROMPT)
        shown.press(b"too long\n")
        place = shown.wait_for("the context is full")
        shown.wait_for(PROMPT, since=place)
        shown.press(b"shorter\n")
        place = shown.wait_for("Hello there", since=place)
        shown.wait_for(PROMPT, since=place)
        shown.press(b"\x04")
        assert shown.end() == 0
    assert tiny.bodies("POST", CHATS)[1]["messages"] == [{"role": "user", "content": "shorter"}]


@pytest.mark.slow
def test_what_is_waited_for_shows_until_the_answer_begins(tiny: FakeCorral, state: Path, hold: threading.Event) -> None:
    loading = {"id": "tiny", "state": "loading", "progress": {"phase": "loading", "fraction": 0.4}}
    tiny.answers("GET", "/v1/models/tiny", loading)
    tiny.answers("POST", CHATS, as_chunks(hold=hold, is_whole=False))
    with terminal("chat", "tiny", "hello") as shown:
        shown.wait_for("tiny: loading, 40 %")
        shown.press(b"\x03")
        assert shown.end() == 130
        assert b"Traceback" not in shown.seen


@pytest.mark.slow
def test_a_look_at_the_model_that_hangs_keeps_no_answer_back(
    tiny: FakeCorral, state: Path, hold: threading.Event
) -> None:
    looks = [{"id": "tiny", "state": "ready"}, Reply(hold=hold)]
    tiny.answers("GET", "/v1/models/tiny", *looks)
    answer = as_chunks(said("Hello there"), said(finish="stop"))
    tiny.answers("POST", CHATS, replace(answer, pieces=[b": ping\n\n", b"".join(answer.pieces)], gap_s=1.2))
    with terminal("chat", "tiny", "hello") as shown:
        shown.wait_for("there")
        assert shown.end() == 0
    assert len([one for one in tiny.asked if one.path == "/v1/models/tiny"]) == len(looks)


def test_a_failure_begins_a_line_behind_what_was_said(tiny: FakeCorral) -> None:
    tiny.answers("POST", CHATS, as_chunks(said("Hello"), is_whole=False))
    with terminal("chat", "tiny", "x") as shown:
        assert shown.end() == 1
        assert b"Hello\r\ncorral: the answer broke off" in shown.seen


def test_a_list_of_models_that_is_none_is_told(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/v1/models", {"models": []})
    done = corral("chat", typed="x")
    assert done.exit_code == ExitCode.NO_SERVER
    assert "is no Corral: it sent something else than a list of models" in done.stderr
