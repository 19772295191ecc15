"""What the rest of the worker needs of a tokenizer, as a protocol: tests bring their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The tokens around the parts of a file whose middle is to be filled in; None = the model has no such token."""

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    repository: int | None = None
    """In front of the name of a repository."""
    file: int | None = None
    """In front of each file's name."""


class Vocabulary(Protocol):
    """Text to tokens and back. Thread-safe."""

    @property
    def num_vocab(self) -> int:
        """Token ids are 0 to `num_vocab - 1`."""
        ...

    @property
    def bos(self) -> int | None:
        """The begin token."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether prompts begin with `bos`."""
        ...

    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def bos_text(self) -> str:
        """Text of the begin token; empty without one."""
        ...

    @property
    def eos_text(self) -> str:
        """Text of the end token; empty without one."""
        ...

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of all control tokens, longest first."""
        ...

    @property
    def control_tokens(self) -> frozenset[int]:
        """All control tokens: none of them is text."""
        ...

    def marker(self, text: str) -> int | None:
        """Return the special token that `text` is the text of; None if there is none.

        Special are control tokens, and those that a file's author has added and named.
        """
        ...

    @property
    def fim(self) -> FimTokens:
        """The model's own tokens for filling in the middle."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Source of the file's template."""
        ...

    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """What the file recommends, by field name of SamplingParams."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return token ids. With `parse_special` the texts of control tokens become those tokens."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of the token; none for a control token unless `special`."""
        ...

    def pieces(self) -> list[bytes]:
        """Return the bytes of all tokens, those of control tokens included. Nothing of it is kept."""
        ...
