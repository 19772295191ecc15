"""`corral chat`: a conversation with a model, or one question to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from router.cli import chat_commands
from router.cli.answer import Answer, Kind
from router.cli.chat_input import line_editor, quiet_keys, read_message, read_piped
from router.cli.completing import complete_models
from router.cli.conversation import Conversation, WrongSetting
from router.cli.formats import clean
from router.cli.live import read_status
from router.cli.model_wait import LOOK_EVERY_S, doing, entry_of, listed_models
from router.cli.output import (
    CommandFailed,
    ExitCode,
    console,
    error_console,
    is_terminal,
    is_typed,
    json_option,
    print_json,
)
from router.cli.picture import Picture
from router.cli.server import Server, open_server, server_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_STDIN = "-"
_QUIET_S = 0.7
"""An answer that begins so soon needs no word about what is waited for."""
_END_WITHIN_S = 2.0
"""So long the end of an answer waits for a look at the model that is still on its way; it may never come back."""


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@click.argument("message", nargs=-1)
@click.option("-s", "--system", default="", help="Tell the model how to behave.")
@click.option(
    "--set",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="temperature, max_tokens, seed and others, as /set has them; may be given several times.",
)
@click.option("--no-history", is_flag=True, help="Keep no typed lines for the next conversation.")
@json_option
@server_option
def chat(
    model: str | None,
    message: tuple[str, ...],
    system: str,
    pairs: tuple[str, ...],
    no_history: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Talk with MODEL, or ask it one MESSAGE and print the answer.

    A message may come from a pipe too: `cat report.txt | corral chat MODEL`; a - among the words of MESSAGE stands for
    it. Without MODEL it is the server's default model, or the only one that is loaded.

    In a conversation /help shows what there is. Ctrl-C stops an answer, Ctrl-D leaves. With --json the whole reply of
    the server is printed, and there is no conversation.
    """
    text = _message(message, is_piped=not is_typed())
    if text is None and (as_json or not is_terminal()):
        raise click.UsageError("there is no message: give one after the name of the model, or through a pipe")
    if text == "":
        raise click.UsageError("the message is empty")
    with open_server(url) as server:
        talk = Conversation(model or _default_model(server), system)
        _apply(talk, pairs)
        _expect_chat(entry_of(server, talk.model), server)
        if text is None:
            with line_editor(keep_history=not no_history):
                _Terminal(server, talk).run()
            return
        talk.ask(text)
        if as_json:
            with _told_waiting(server, talk.model):
                reply = server.send("POST", "/v1/chat/completions", body=talk.request(stream=False), max_silence_s=None)
            print_json(reply)
            return
        answer = Answer()
        try:
            _print_answer(server, talk, answer)
        except (CommandFailed, KeyboardInterrupt):
            if answer.text:  # what comes next begins a line
                click.echo()
            raise
        if is_terminal():
            error_console().print(clean(answer.describe()), style="dim", markup=False)


class _Terminal:
    """A conversation with somebody who types."""

    def __init__(self, server: Server, talk: Conversation) -> None:
        self._server = server
        self._talk = talk

    def run(self) -> None:
        """Answer what is typed until it is enough."""
        self._tell(f"{self._talk.model} at {self._server.url}; /help shows what there is, Ctrl-D leaves")
        while True:
            try:
                text = read_message(input)
            except KeyboardInterrupt:
                click.echo("\n(Ctrl-D or /bye leaves)")
                continue
            except EOFError:
                click.echo()
                return
            if text.startswith("/"):
                if self._command(text):
                    return
            elif text:
                self._ask(text)

    def _command(self, line: str) -> bool:
        """Do what the line says; return whether it is the end."""
        reply = chat_commands.run(line, self._talk)
        if reply.model is not None:
            self._turn_to(reply.model)
        elif reply.text:
            self._tell(reply.text)
        return reply.is_end

    def _turn_to(self, name: str) -> None:
        try:
            entry = entry_of(self._server, name)
            _expect_chat(entry, self._server)
        except CommandFailed as failed:
            self._tell(failed.message, style="red")
            return
        self._talk.model = name
        self._tell(f"from here on {name} answers")

    def _ask(self, text: str) -> None:
        self._talk.ask(text)
        answer = Answer()
        try:
            with quiet_keys():
                _print_answer(self._server, self._talk, answer)
        except KeyboardInterrupt:
            click.echo()
            self._end(answer, "stopped; what was said so far stays said, /undo takes it back")
        except CommandFailed as failed:
            if answer.text:
                click.echo()
            self._end(answer, failed.message, style="red")
        else:
            self._talk.answered(answer.text, answer.tool_calls)
            self._tell(answer.describe())

    def _end(self, answer: Answer, why: str, style: str = "dim") -> None:
        """An answer is not whole: what came of it stays, nothing of it means that nothing was asked."""
        if answer.text:
            self._talk.answered(answer.text)
        else:
            self._talk.undo()
        self._tell(why, style=style)

    @staticmethod
    def _tell(text: str, style: str = "dim") -> None:
        if text:
            console().print(clean(text, keep_lines=True), style=style, markup=False)


def _print_answer(server: Server, talk: Conversation, answer: Answer) -> None:
    """The answer is on stdout as it comes, its thoughts dimmed where somebody looks. Mutates: `answer`."""
    out = console() if is_terminal() else None
    shown: Kind | None = None
    reply = server.events("POST", "/v1/chat/completions", body=talk.request())
    with _told_waiting(server, talk.model) as begin, reply as events:
        for piece in answer.read(events):
            begin()
            text = piece.text
            if out is not None and shown is Kind.THOUGHT and piece.kind is Kind.TEXT:
                click.echo("" if answer.thoughts.endswith("\n") else "\n")
                text = text.lstrip("\n")
            _print_piece(piece.kind, text, out)
            shown = piece.kind
    if shown is not None and not (answer.text or answer.thoughts).endswith("\n"):
        click.echo()
    for call in answer.tool_calls:
        click.echo(clean(f"calls {call['function']['name']}({call['function']['arguments']})"))
    if shown is None and not answer.tool_calls:
        click.echo("corral: the answer is empty", err=True)


def _print_piece(kind: Kind, text: str, out: Console | None) -> None:
    text = clean(text, keep_lines=True)
    if kind is Kind.TEXT:
        click.echo(text, nl=False)
    elif out is not None:
        out.print(text, style="dim", end="", markup=False, soft_wrap=True)
        out.file.flush()


@contextmanager
def _told_waiting(server: Server, model: str) -> Iterator[Any]:
    """Inside the block it shows on stderr what the model does, until what this gives is called."""
    terminal = error_console()
    if not terminal.is_terminal or terminal.is_dumb_terminal:
        yield lambda: None
        return
    status, lock, is_over = terminal.status("", spinner="dots"), threading.Lock(), threading.Event()

    def show() -> None:
        if is_over.wait(_QUIET_S):
            return
        with lock:
            if is_over.is_set():
                return
            status.start()
        for text in _waited_for(server, model):
            if is_over.is_set():
                return
            status.update(text)
            is_over.wait(LOOK_EVERY_S)
        end()

    def end() -> None:
        with lock:
            is_over.set()
            status.stop()

    teller = threading.Thread(target=show, daemon=True)
    teller.start()
    try:
        yield end
    finally:
        end()
        teller.join(_END_WITHIN_S)


def _waited_for(server: Server, model: str) -> Iterator[Text]:
    """Yield in words what the model does, as long as the server tells."""
    from rich.text import Text

    while True:
        try:
            entry = entry_of(server, model)
        except CommandFailed:  # the request itself will tell
            return
        what = "waits for the first token" if entry.get("state") in ("ready", "remote") else doing(entry).text
        yield Text(clean(f"{model}: {what}"), style="dim")


def _message(words: tuple[str, ...], *, is_piped: bool) -> str | None:
    """Return what is asked; None if nothing is said and somebody sits there."""
    if _STDIN in words or (not words and is_piped):
        piped = read_piped()
        parts = [piped if word == _STDIN else word for word in words] or [piped]
        return "\n\n".join(part for part in parts if part)
    return " ".join(words).strip() if words else None


def _apply(talk: Conversation, pairs: tuple[str, ...]) -> None:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes NAME=VALUE, not {pair!r}")
        try:
            talk.set(name.strip(), value.strip())
        except WrongSetting as wrong:
            raise click.UsageError(f"--set {name}: {wrong}") from None


def _expect_chat(entry: Mapping[str, Any], server: Server) -> None:
    """Raises: CommandFailed for a model that holds no conversations."""
    able = entry.get("capabilities")
    if not isinstance(able, list) or "chat" in able:
        return
    name = entry.get("id")
    if "completion" in able:
        text = (
            f"{name} has no chat template: it is a base model, which continues text. Ask it with "
            f"POST {server.url}/v1/completions, or give it a `chat_template` in models.yaml"
        )
    else:
        text = f"{name} answers no messages: it is for {', '.join(map(str, able)) or 'nothing that is known'}"
    raise CommandFailed(text)


def _default_model(server: Server) -> str:
    """Return the model that is meant where none is named. Raises: CommandFailed with the names that there are."""
    try:
        default = Picture.of(read_status(server)).server.get("default_model")
    except CommandFailed:  # an older server, or a key that may not look: the list is enough
        default = None
    if default:
        return str(default)
    models = listed_models(server)
    loaded = [one for one in models if one.get("state") == "ready"]
    for found in (loaded, models):
        if len(found) == 1:
            return str(found[0]["id"])
    names = "\n".join(f"  corral chat {one['id']:<24} {one.get('state', '')}".rstrip() for one in models)
    raise CommandFailed(f"say with which model:\n{names}" if names else "the server has no models", ExitCode.USAGE)
