"""A conversation as `corral chat` holds it: its messages, what was set for it, and the request that they make.

Pure data. Must not ask a server, read a key or print.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class WrongSetting(ValueError):
    """A name or a value that `/set` does not take; the text says why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that a request may say about how it is answered."""

    read: Callable[[str], Any]
    help: str


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # JSON has no word for it
        raise ValueError
    return number


def _words(text: str) -> str:
    return text


def _yes_or_no(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError


SETTINGS: Mapping[str, Setting] = {
    "temperature": Setting(_number, "how much chance there is in the choice of words; 0 = none"),
    "top_p": Setting(_number, "choose among the likeliest tokens that make up this share"),
    "top_k": Setting(int, "choose among so many of the likeliest tokens; 0 = all"),
    "min_p": Setting(_number, "leave out tokens that are less likely than this share of the likeliest"),
    "max_tokens": Setting(int, "end the answer after so many tokens"),
    "seed": Setting(int, "the same seed, the same answer"),
    "repeat_penalty": Setting(_number, "how much tokens that were there lately are avoided; 1 = not"),
    "presence_penalty": Setting(_number, "how much tokens that were there at all are avoided; 0 = not"),
    "frequency_penalty": Setting(_number, "the same, the more often the more; 0 = not"),
    "reasoning_effort": Setting(_words, "how long a model thinks that can: none, low, medium, high"),
    "stop": Setting(_words, "a text that ends the answer"),
}


@dataclass
class Conversation:
    """Messages in turn, the user's and the model's."""

    model: str
    system: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def num_exchanges(self) -> int:
        """How often the user has spoken."""
        return sum(message["role"] == "user" for message in self.messages)

    def ask(self, text: str) -> None:
        """The user has said `text`."""
        self.messages.append({"role": "user", "content": text})

    def answered(self, text: str, tool_calls: list[dict[str, Any]] | None = None) -> None:
        """The model has said `text`. Thoughts are no part of a conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if tool_calls:
            message["tool_calls"] = tool_calls
        self.messages.append(message)

    def undo(self) -> str | None:
        """The last message of the user and all that came after is gone; return it, None if there was none."""
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at]["role"] == "user":
                text = str(self.messages[at]["content"])
                del self.messages[at:]
                return text
        return None

    def clear(self) -> None:
        """Nothing has been said. The system text and the settings stay."""
        self.messages.clear()

    def set(self, name: str, text: str) -> None:
        """The setting holds from the next answer on; an empty text gives it back to the model. Raises: WrongSetting."""
        setting = SETTINGS.get(name)
        if setting is None:
            raise WrongSetting(f"there is no setting {name!r}; there are {', '.join(SETTINGS)}")
        if not text:
            self.settings.pop(name, None)
            return
        try:
            self.settings[name] = setting.read(text)
        except ValueError:
            raise WrongSetting(f"{text!r} is no value for {name}: {setting.help}") from None

    def request(self, *, stream: bool = True) -> dict[str, Any]:
        """Return the body for `POST /v1/chat/completions`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"model": self.model, "messages": [*system, *self.messages], **self.settings}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def to_json(self) -> str:
        """Return everything as the body of a request that asks for the same again."""
        return json.dumps(self.request(stream=False), indent=2, ensure_ascii=False) + "\n"
