"""What the rest of the worker needs of a tokenizer, as a protocol: tests bring their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


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
