"""Compressed request bodies: pieces as they come to pieces as they are meant, none of them large.

Owns which encodings are understood. Must not count bodies (`body.py` does), nor unpack more than it is asked for: a few
bytes can stand for gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

from router.errors import BadRequest, UnsupportedMediaType

STEP_BYTES = 256 * 1024
"""Longest piece that is made at once, in about a millisecond."""

_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class Inflater(Protocol):
    """Unpacks one body."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield what `piece` unpacks to, in small pieces. Raises: BadRequest."""

    def close(self) -> None:
        """Return if the body is complete. Raises: BadRequest."""


def make_inflater(encoding: str) -> Inflater:
    """Return what unpacks a body with this `Content-Encoding`. Raises: UnsupportedMediaType."""
    match encoding.strip().lower():
        case "" | "identity":
            return _Identity()
        case "gzip" | "x-gzip":
            return _Zlib("gzip")
        case "deflate":
            return _Zlib("deflate")
        case _:
            raise UnsupportedMediaType(
                f"the request body has `Content-Encoding: {encoding.strip()[:40]}`, which is not understood; send it "
                "as gzip or deflate, or without any compression"
            )


class _Identity:
    def feed(self, piece: bytes) -> Iterator[bytes]:
        yield piece

    def close(self) -> None:
        pass


class _Zlib:
    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._unpacker: zlib._Decompress | None = None
        """Of the present part; gzip may have several, one after the other."""
        self._is_over = False
        """Nothing may come any more."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        made = b""
        while piece or (self._unpacker is not None and len(made) == STEP_BYTES):  # then there may be more inside
            if self._is_over:
                raise self._wrong("something follows its end")
            if self._unpacker is None:
                # Some clients send `deflate` without the header that it should have.
                is_headed = self._encoding == "gzip" or piece[0] & 0x0F == 8
                wbits = _GZIP if self._encoding == "gzip" else zlib.MAX_WBITS if is_headed else _RAW
                self._unpacker = zlib.decompressobj(wbits)
            try:
                made = self._unpacker.decompress(piece, STEP_BYTES)
            except zlib.error as error:
                raise self._wrong(str(error)) from None
            piece = self._unpacker.unconsumed_tail
            if self._unpacker.eof:
                piece = self._unpacker.unused_data
                self._unpacker = None
                self._is_over = self._encoding != "gzip"
            if made:
                yield made

    def close(self) -> None:
        if self._unpacker is not None:
            raise self._wrong("it is cut off")

    def _wrong(self, reason: str) -> BadRequest:
        return BadRequest(f"the request body is not what `Content-Encoding: {self._encoding}` says: {reason}")
