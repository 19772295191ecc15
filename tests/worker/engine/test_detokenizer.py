"""Tokens become text as it may be sent: whole characters, never past a stop string, nothing lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.detokenizer import TextStream


class Cut:
    """A vocabulary whose tokens are pieces of one text: token `n` is the n-th piece."""

    def __init__(self, *pieces: bytes, control: frozenset[int] = frozenset()) -> None:
        self.pieces = pieces
        self.control = control

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"" if token in self.control and not special else self.pieces[token]


def stream_of(*pieces: bytes | str, stop: tuple[str, ...] = (), **options: int) -> TextStream:
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return TextStream(Cut(*raw), stop, **options)  # type: ignore[arg-type]


def push_all(stream: TextStream, count: int) -> list[str]:
    return [stream.push([token]) for token in range(count)]


# --- characters -------------------------------------------------------------------------------------------


def test_text_comes_token_by_token() -> None:
    stream = stream_of("Hello", " world", "!")
    assert push_all(stream, 3) == ["Hello", " world", "!"]
    assert (stream.num_tokens, stream.has_held_text, stream.flush()) == (3, False, "")


def test_several_tokens_may_come_at_once() -> None:
    stream = stream_of("a", "b", "c")
    assert stream.push([0, 1, 2]) == "abc"
    assert stream.num_tokens == 3


def test_character_of_several_tokens_waits_for_its_last_byte() -> None:
    llama = "🦙".encode()
    stream = stream_of(b"a" + llama[:1], llama[1:3], llama[3:] + b"b")
    assert stream.push([0]) == "a"
    assert stream.has_held_text
    assert stream.push([1]) == ""
    assert stream.push([2]) == "🦙b"
    assert not stream.has_held_text


def test_character_that_is_never_finished_ends_as_one_replacement() -> None:
    stream = stream_of("a", "🦙".encode()[:3])
    assert push_all(stream, 2) == ["a", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_character_that_is_never_finished_may_be_dropped() -> None:
    stream = stream_of("a", "🦙".encode()[:3], stop=["ab"])
    assert push_all(stream, 2) == ["", ""]
    assert stream.flush(drops_unfinished=True) == "a"
    assert stream.flush() == ""


@pytest.mark.parametrize("broken", [b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf0\x9fa", b"\x80\x80"])
def test_bytes_that_are_no_text_become_what_python_makes_of_them(broken: bytes) -> None:
    stream = stream_of("a", *(bytes([byte]) for byte in broken), "b")
    text = "".join(push_all(stream, len(broken) + 2)) + stream.flush()
    assert text == (b"a" + broken + b"b").decode("utf-8", "replace")


def test_control_tokens_have_no_text_unless_they_are_shown() -> None:
    words = Cut(b"<|im_end|>", b"x", control=frozenset({0}))
    hidden, shown = TextStream(words), TextStream(words, show_special=True)
    assert (hidden.push([0, 1]), hidden.num_tokens) == ("x", 2)
    assert shown.push([0, 1]) == "<|im_end|>x"


# --- stop strings -----------------------------------------------------------------------------------------


def test_text_ends_before_a_stop_string_within_one_token() -> None:
    stream = stream_of("one STOP two", stop=("STOP",))
    assert stream.push([0]) == "one "
    assert (stream.is_stopped, stream.num_tokens, stream.flush()) == (True, 1, "")


def test_text_ends_before_a_stop_string_over_several_tokens() -> None:
    stream = stream_of("A B K", " L", " M", " N", stop=("K L M",))
    assert push_all(stream, 4) == ["A B ", "", "", ""]
    assert stream.is_stopped
    assert stream.num_tokens == 3, "the token that completed the stop string is the last to count"
    assert stream.flush() == ""


def test_what_only_looked_like_a_stop_string_comes_as_soon_as_that_is_clear() -> None:
    stream = stream_of("a K", " L", " X", stop=("K L M",))
    assert push_all(stream, 3) == ["a ", "", "K L X"]
    assert not stream.is_stopped


def test_held_text_comes_at_the_end() -> None:
    stream = stream_of("a K", " L", stop=("K L M",))
    assert push_all(stream, 2) == ["a ", ""]
    assert stream.has_held_text
    assert stream.flush() == "K L"


def test_a_stop_string_that_begins_again_inside_itself_is_found() -> None:
    stream = stream_of("a", "a", "b", "a", "a", "c", stop=("aac",))
    assert push_all(stream, 6) == ["", "", "aab", "", "", ""]
    assert stream.is_stopped


def test_the_first_of_several_stop_strings_ends_the_text() -> None:
    stream = stream_of("x END y STOP", stop=("STOP", "END"))
    assert stream.push([0]) == "x "


def test_a_shorter_stop_string_is_found_inside_a_longer_one() -> None:
    stream = stream_of("a", "b", "c", stop=("abcd", "bc"))
    assert push_all(stream, 3) == ["", "", "a"]
    assert stream.is_stopped


def test_a_stop_string_of_characters_that_span_tokens_is_found() -> None:
    llama = "🦙".encode()
    stream = stream_of(b"a" + llama[:2], llama[2:], b"b", stop=("🦙b",))
    assert push_all(stream, 3) == ["a", "", ""]
    assert stream.is_stopped


def test_an_unfinished_character_after_a_possible_stop_string_is_not_lost() -> None:
    stream = stream_of("K", "é".encode()[:1], stop=("KK",))
    assert push_all(stream, 2) == ["", ""]
    assert stream.flush() == "K\ufffd"


def test_nothing_after_the_stop_string_counts() -> None:
    stream = stream_of("a", "STOP", "b", "c", stop=("STOP",))
    assert stream.push([0, 1, 2, 3]) == "a"
    assert stream.num_tokens == 2
    assert stream.push([2]) == ""
    assert stream.num_tokens == 2


def test_a_stop_string_within_the_least_length_is_text_like_any_other() -> None:
    stream = stream_of("aSTOP", "b", "STOP", "c", stop=("STOP",), min_tokens=2)
    assert push_all(stream, 4) == ["aSTOP", "b", "", ""]
    assert (stream.is_stopped, stream.num_tokens) == (True, 3)


def test_a_stop_string_counts_if_a_token_after_the_least_length_completes_it() -> None:
    stream = stream_of("a", "ST", "OP", "c", stop=("STOP",), min_tokens=2)
    assert push_all(stream, 4) == ["a", "", "", ""]
    assert (stream.is_stopped, stream.num_tokens) == (True, 3)


def test_what_was_held_at_the_least_length_is_not_searched_again() -> None:
    stream = stream_of("xab", "z", stop=("ab", "xaby"), min_tokens=1)
    assert push_all(stream, 2) == ["", "xabz"]
    assert not stream.is_stopped


# --- any text, any cut ------------------------------------------------------------------------------------

TEXTS = st.text(alphabet="ab é🦙\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab é🦙", min_size=1, max_size=4), max_size=3).map(tuple)
CUTS = st.lists(st.integers(1, 5), max_size=120)


def cut(raw: bytes, sizes: list[int]) -> list[bytes]:
    """Return the bytes in pieces of these sizes, the rest as one."""
    pieces = []
    for size in sizes:
        pieces.append(raw[:size])
        raw = raw[size:]
    return [piece for piece in [*pieces, raw] if piece]


def ended(text: str, stop: tuple[str, ...]) -> str:
    """Return the text up to the stop string that is completed first, as one that reads letter by letter would."""
    for end in range(1, len(text) + 1):
        found = [text[:end].find(one) for one in stop if one in text[:end]]
        if found:
            return text[: min(found)]
    return text


@given(raw=st.one_of(TEXTS.map(str.encode), st.binary(max_size=40)), sizes=CUTS)
def test_any_cut_into_tokens_gives_the_same_text(raw: bytes, sizes: list[int]) -> None:
    pieces = cut(raw, sizes)
    stream = stream_of(*pieces)
    text = "".join(push_all(stream, len(pieces))) + stream.flush()
    assert text == raw.decode("utf-8", "replace")
    assert not stream.has_held_text


@given(text=TEXTS, stop=STOPS, sizes=CUTS)
def test_any_cut_ends_before_a_stop_string_and_loses_nothing_before_it(
    text: str, stop: tuple[str, ...], sizes: list[int]
) -> None:
    pieces = cut(text.encode(), sizes)
    stream = stream_of(*pieces, stop=stop)
    sent = ""
    for token in range(len(pieces)):
        sent += stream.push([token])
        assert text.startswith(sent)
        assert not any(one in sent for one in stop), "text with a stop string was sent"
    sent += stream.flush()
    assert stream.is_stopped == any(one in text for one in stop)
    if not stream.is_stopped:
        assert sent == text
    else:
        assert text[len(sent) :].startswith(stop), "the text ends right before a stop string"


@given(text=TEXTS, stop=STOPS)
def test_letter_by_letter_the_first_completed_stop_string_wins(text: str, stop: tuple[str, ...]) -> None:
    pieces = [letter.encode() for letter in text]
    stream = stream_of(*pieces, stop=stop)
    assert "".join(push_all(stream, len(pieces))) + stream.flush() == ended(text, stop)


@given(text=TEXTS, stop=STOPS, sizes=CUTS)
def test_tokens_that_count_are_those_up_to_the_stop_string(text: str, stop: tuple[str, ...], sizes: list[int]) -> None:
    pieces = cut(text.encode(), sizes)
    stream = stream_of(*pieces, stop=stop)
    push_all(stream, len(pieces))
    counted = b"".join(pieces[: stream.num_tokens]).decode("utf-8", "ignore")
    assert any(one in counted for one in stop) == stream.is_stopped
    if stream.is_stopped:
        before = b"".join(pieces[: stream.num_tokens - 1]).decode("utf-8", "ignore")
        assert not any(one in before for one in stop)
    else:
        assert stream.num_tokens == len(pieces)


@given(text=TEXTS, stop=STOPS, sizes=CUTS)
def test_no_more_is_held_back_than_could_become_a_stop_string(
    text: str, stop: tuple[str, ...], sizes: list[int]
) -> None:
    pieces = cut(text.encode(), sizes)
    stream = stream_of(*pieces, stop=stop)
    sent = ""
    for token in range(len(pieces)):
        sent += stream.push([token])
        if not stream.is_stopped:
            known = b"".join(pieces[: token + 1]).decode("utf-8", "ignore")
            held = known[len(sent) :]
            assert not held or any(one.startswith(held) for one in stop)


@given(text=TEXTS, stop=STOPS, sizes=CUTS, min_tokens=st.integers(0, 12))
def test_stop_strings_completed_within_the_least_length_do_not_count(
    text: str, stop: tuple[str, ...], sizes: list[int], min_tokens: int
) -> None:
    pieces = cut(text.encode(), sizes)
    stream = stream_of(*pieces, stop=stop, min_tokens=min_tokens)
    sent = "".join(push_all(stream, len(pieces))) + stream.flush()
    exempt = len(b"".join(pieces[:min_tokens]).decode("utf-8", "ignore"))
    ends = [end for end in range(exempt + 1, len(text) + 1) if text[:end].endswith(stop)] if stop else []
    assert stream.is_stopped == bool(ends)
    if not ends:
        assert sent == text
    else:
        assert text.startswith(sent)
        assert text[len(sent) :].startswith(stop)
        assert stream.num_tokens > min_tokens
