"""The text of an answer: never half a character, never part of a stop string, and the same however tokens are grouped.

An input is stop strings, each ended by a byte 0xFE, then one 0xFF, then the bytes of the tokens. UTF-8 has neither.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from tests.fuzz.parsers.subject import Subject, cuts_of, dice_of, pieces_of
from worker.engine.detokenizer import TextStream

_REPLACEMENT = "\ufffd"
_MAX_BYTES = 120


class _Vocabulary:
    """Tokens are places in a list of bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self._pieces[token]


def check(data: bytes) -> None:
    told, there, text = data.partition(b"\xff")
    if not there:
        told, text = b"", data
    stops = [stop for one in told.split(b"\xfe") if (stop := one.decode("utf-8", "ignore"))][:16]
    text = text[:_MAX_BYTES]
    dice = dice_of(data)
    _check(stops, [text[at : at + 1] for at in range(len(text))], data, 0)
    pieces = pieces_of(text, dice, max(1, len(text) // 3))
    _check(stops, pieces, data, 0)
    _check(stops, pieces, data, dice.randint(1, 6))


def _check(stops: Sequence[str], pieces: Sequence[bytes], data: bytes, min_tokens: int) -> None:
    vocabulary = _Vocabulary(pieces)
    tokens = list(range(len(pieces)))
    whole = b"".join(pieces).decode("utf-8", "replace")
    stream = TextStream(vocabulary, stops, min_tokens=min_tokens)
    plain = codecs.getincrementaldecoder("utf-8")("replace")
    text, num_chars = "", 0
    for token in tokens:
        before = stream.is_stopped
        shown = stream.push([token])
        assert not (before and shown)
        assert whole.startswith(shown, len(text)), "text was sent that is taken back"
        text += shown
        num_chars += len(plain.decode(pieces[token]))
        if not stream.has_held_text and not stream.is_stopped:
            assert len(text) == num_chars
    text += stream.flush()
    assert stream.flush() == ""
    _check_end(stream, stops, text, whole, pieces, min_tokens)
    for group in cuts_of("".join(map(chr, tokens)), data):
        other = TextStream(vocabulary, stops, min_tokens=min_tokens)
        found = "".join([other.push([ord(one) for one in part]) for part in group]) + other.flush()
        assert (found, other.stop_string, other.num_tokens) == (text, stream.stop_string, stream.num_tokens)
    dropped = TextStream(vocabulary, (), min_tokens=min_tokens)
    end = dropped.push(tokens) + dropped.flush(drops_unfinished=True)
    assert whole.startswith(end)
    assert whole[len(end) :] in ("", _REPLACEMENT, 2 * _REPLACEMENT)  # two: half a surrogate is two faults


def _check_end(
    stream: TextStream, stops: Sequence[str], text: str, whole: str, pieces: Sequence[bytes], min_tokens: int
) -> None:
    if stream.stop_string is None:
        assert text == whole
        assert stream.num_tokens == len(pieces)
        if min_tokens == 0:
            assert not any(stop in whole for stop in stops if _REPLACEMENT not in stop)
        return
    assert stream.stop_string in stops
    assert whole.startswith(text + stream.stop_string)
    assert stream.num_tokens > min_tokens
    counted = b"".join(pieces[: stream.num_tokens]).decode("utf-8", "replace")
    assert len(text + stream.stop_string) <= len(counted)
    if min_tokens == 0:
        assert not any(stop in text for stop in stops)


def seeds() -> Iterator[bytes]:
    for text in ("Hello, wörld! 🙂 日本語", "abcabcabd", "aaaaab", "</s>\n\nUser: hi", "👩‍👩‍👧‍👦 e\u0301"):
        yield text.encode()
        yield b"ab\xfe\n\nUser:\xfe\xff" + text.encode()
        yield "wör\xfe🙂\xfe本\xfe".encode().replace("\xfe".encode(), b"\xfe") + b"\xff" + text.encode()
    yield b"aab\xfeab\xfeb\xfe\xffaaaab"
    yield b"\xe2\x82\xf0\x9f\x99\xed\xa0\x80\xc0\xafabc\xe2"
    yield b"a\xfe\xff" + b"\xf0\x9f" * 20


SUBJECT = Subject(
    "detokenizer",
    check,
    seeds,
    (
        *(
            b"\xfe",
            b"\xff",
            b"a",
            b"ab",
            b"aab",
            b"\xf0\x9f\x99\x82",
            b"\xf0\x9f",
            b"\x99",
            b"\xe6\x97\xa5",
            b"\xe6",
            b"\xc3",
        ),
        *(b"\xed\xa0\x80", b"\xef\xbf\xbd", b"\xef\xbb\xbf", b"\xf4\x90\x80\x80", b"\0", b"\n\n", b"</s>", b"\xc0\xaf"),
    ),
    max_size=200,
)
