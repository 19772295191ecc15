"""What begins with a slash in a conversation: the commands, their help, and what each does.

Owns the table of commands. Must not ask a server nor read what is typed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from router.cli.chat_input import BLOCK
from router.cli.conversation import SETTINGS, Conversation, WrongSetting
from router.cli.formats import counted


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command answers."""

    text: str = ""
    is_end: bool = False
    """The conversation is over."""
    model: str | None = None
    """Somebody wants to talk with this one."""


@dataclass(frozen=True, slots=True)
class _Command:
    form: str
    help: str
    run: Callable[[Conversation, str], Reply]


def run(line: str, talk: Conversation) -> Reply:
    """Do what `line`, which begins with a slash, says, and return what there is to tell. Mutates: `talk`."""
    name, _, rest = line.partition(" ")
    command = _COMMANDS.get(name)
    if command is None:
        near = [known for known in _COMMANDS if known.startswith(name)]
        if len(near) == 1:
            return _COMMANDS[near[0]].run(talk, rest.strip())
        return Reply(f"there is no {name}; /help shows what there is. A message that begins so: put it into {BLOCK}")
    return command.run(talk, rest.strip())


def names() -> list[str]:
    """Return all commands."""
    return list(_COMMANDS)


def _help(_talk: Conversation, _rest: str) -> Reply:
    width = max(len(command.form) for command in _COMMANDS.values())
    lines = [f"{command.form:<{width}}  {command.help}" for command in _COMMANDS.values()]
    more = [
        "",
        f"A line that ends with \\ goes on with the next one; {BLOCK} begins and ends a block of lines.",
        "Text that is pasted is one message.",
        "Ctrl-C stops an answer, or takes back the line; Ctrl-D leaves.",
    ]
    return Reply("\n".join([*lines, *more]))


def _clear(talk: Conversation, _rest: str) -> Reply:
    num = talk.num_exchanges
    talk.clear()
    return Reply(f"forgotten: {counted(num, 'message')} of yours and the answers" if num else "nothing was said yet")


def _system(talk: Conversation, rest: str) -> Reply:
    if not rest:
        return Reply(f"system: {talk.system}" if talk.system else "there is no system text; /system TEXT sets one")
    talk.system = "" if rest == "-" else rest
    return Reply("the system text is gone" if rest == "-" else "the system text holds from the next answer on")


def _undo(talk: Conversation, _rest: str) -> Reply:
    text = talk.undo()
    if text is None:
        return Reply("nothing was said yet")
    line = " ".join(text.split())
    return Reply(f"taken back: {line if len(line) <= 60 else line[:59] + '…'}")


def _model(talk: Conversation, rest: str) -> Reply:
    if not rest:
        return Reply(f"you talk with {talk.model}; /model NAME goes on with another")
    return Reply(model=rest)


def _save(talk: Conversation, rest: str) -> Reply:
    if not rest:
        return Reply("say where: /save FILE")
    file = Path(os.path.expanduser(rest))  # Path's own raises for users that there are not
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(talk.to_json())
    except FileExistsError:
        return Reply(f"{file} is there already; it stays as it is")
    except OSError as error:
        return Reply(f"cannot write {file}: {error.strerror}")
    return Reply(f"written to {file}, as the body of a request to /v1/chat/completions")


def _set(talk: Conversation, rest: str) -> Reply:
    name, _, value = rest.partition(" ")
    if not name:
        width = max(map(len, SETTINGS))
        lines = [
            f"{key:<{width}}  {talk.settings.get(key, '–')!s:<8}  {setting.help}" for key, setting in SETTINGS.items()
        ]
        return Reply(
            "\n".join([*lines, "– = as the model and its configuration have it; /set NAME gives it back to them"])
        )
    try:
        talk.set(name, value.strip())
    except WrongSetting as wrong:
        return Reply(str(wrong))
    return Reply(f"{name} = {talk.settings[name]}" if name in talk.settings else f"{name} is the model's again")


def _bye(_talk: Conversation, _rest: str) -> Reply:
    return Reply(is_end=True)


_COMMANDS = {
    "/help": _Command("/help", "show this", _help),
    "/clear": _Command("/clear", "forget what was said; the system text and the settings stay", _clear),
    "/system": _Command("/system [TEXT]", "tell the model how to behave; - takes that back", _system),
    "/undo": _Command("/undo", "take back your last message and its answer", _undo),
    "/model": _Command("/model [NAME]", "go on with another model, which then knows what was said", _model),
    "/save": _Command("/save FILE", "write the conversation to a new file", _save),
    "/set": _Command("/set [NAME [VALUE]]", "show or change temperature, max_tokens and others", _set),
    "/bye": _Command("/bye", "leave", _bye),
}
