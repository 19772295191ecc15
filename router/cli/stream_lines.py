"""The lines of an answer while it comes, as the server ends them: with a line feed alone, or after a carriage return.

Pure. What else Unicode has for an end of line stands within texts, and stays there. Must not read events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def split_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of `pieces`, which may end anywhere, without their ends; bytes that are no text are replaced."""
    begun: list[bytes] = []
    for piece in pieces:
        first, *more = piece.split(b"\n")
        begun.append(first)
        for after in more:
            yield _text(b"".join(begun))
            begun = [after]
    if rest := b"".join(begun):
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
