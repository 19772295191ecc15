"""A vocabulary so small that what a grammar allows can be found out by trying everything."""

from __future__ import annotations

from tests.fakes.backend import FakeVocabulary

PIECES = [b"a", b"b", b"c", b"d", b"ab", b"abc", b"bc", b"cd", b"da", b"1", b"12", b"2", b'"', b"x", b"yz"]
FIRST_END, MARK, SECOND_END = 15, 16, 17
SPECIAL = frozenset({FIRST_END, MARK, SECOND_END})


class SmallVocabulary(FakeVocabulary):
    """Some letters, some words, a marker, and two end tokens."""

    eog = frozenset({FIRST_END, SECOND_END})
    control_tokens = SPECIAL

    def __init__(self) -> None:
        super().__init__(len(PIECES) + len(SPECIAL))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        found, rest = [], text.encode()
        while rest:
            piece = max((one for one in PIECES if rest.startswith(one)), key=len)
            found.append(PIECES.index(piece))
            rest = rest[len(piece) :]
        return found

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < len(PIECES):
            return PIECES[token]
        return f"<{token}>".encode() if special else b""


class ByteVocabulary(FakeVocabulary):
    """All bytes, and an end token."""

    eog = frozenset({256})
    control_tokens = frozenset({256})

    def __init__(self) -> None:
        super().__init__(257)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token]) if token < 256 else b"<end>" if special else b""
