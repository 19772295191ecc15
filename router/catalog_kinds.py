"""The kinds of values that keys of `models.yaml` hold, each with what limits it.

Plain data between the table of keys and whatever reads it: parser, schema, documentation. Must not read values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in a range, or one of a few words that stand for a number or for None."""

    minimum: int
    maximum: int
    words: Mapping[str, int | None] = field(default_factory=dict)
    hint: str = ""
    """Added to a message about a wrong type."""
    beyond: str = ""
    """Said instead of the range when the number is too large."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a range; `is_open` leaves the minimum itself out."""

    minimum: float
    maximum: float
    is_open: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, or text with a unit: `8GiB` and `8G` are 8 x 2^30 bytes, `8GB` are 8 x 10^9."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text on one line, not empty; `is_long` allows line breaks."""

    max_length: int = 1000
    is_long: bool = False
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words; `flags` says which words true and false stand for."""

    values: tuple[str, ...]
    flags: Mapping[bool, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of texts, each from `allowed` if that is not empty."""

    allowed: tuple[str, ...] = ()
    are_models: bool = False
    """They are names of models or aliases, or patterns of them with `*`; at least one."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The id of a device, or a list of them."""


@dataclass(frozen=True, slots=True)
class Command:
    """The words of a command as a list, or as text that is cut up as a shell would, without a shell."""


@dataclass(frozen=True, slots=True)
class HookCommands:
    """`{before_load, after_load, after_unload, timeout_s}`."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of another OpenAI-compatible server."""


@dataclass(frozen=True, slots=True)
class Proportions:
    """A list of numbers that are not negative, not all zero."""


@dataclass(frozen=True, slots=True)
class Json:
    """A map of anything that JSON can say."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A map from environment variables to their values."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`{defaults, force, drop}` on the JSON of requests."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """A list of names, or a map from name to `{request, lora, listed}`."""


@dataclass(frozen=True, slots=True)
class Loras:
    """A map from the name of an adapter to its reference, or to `{model, scale}`."""


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """The name of one of the model's adapters, or a map from names to scales."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A SHA-256 sum in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Variable:
    """The name of an environment variable. Messages never quote it: it may be a secret in the wrong place."""


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path of a file, relative to the catalogue's folder."""


Kind = (
    Whole
    | Number
    | Size
    | Flag
    | Text
    | Choice
    | Texts
    | Devices
    | Command
    | HookCommands
    | Address
    | Proportions
    | Json
    | Environment
    | Rules
    | Aliases
    | Loras
    | LoraChoice
    | Digest
    | Variable
    | FilePath
)
