"""What is kept of replies: offsets, readers, and that no bound is ever passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest, Gone, TooManyRequests
from router.kept_streams import MAX_READERS, KeptStream, KeptStreams, StreamLimits, check_id

A = "a" * 24
B = "b" * 24


def store(**limits: float) -> KeptStreams:
    return KeptStreams(StreamLimits(**limits))  # type: ignore[arg-type]


def finished(kept: KeptStreams, owner: str | None, name: str, data: bytes, at_s: float = 0.0) -> KeptStream:
    stream = kept.open(owner, name, at_s)
    kept.add(stream, data)
    kept.finish(stream, at_s)
    return stream


# --- ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a" * 22, "0f8fad5b-d9cb-469f-a165-70867728950e", "A._~-" * 5, "x" * 128])
def test_an_id_that_nobody_can_guess_is_taken(text: str) -> None:
    assert check_id(text, has_keys=False) == text


@pytest.mark.parametrize("text", ["", "short", "a" * 21, "x" * 129, "a/b" * 10, "a b" * 10, "é" * 24, "a" * 24 + "\n"])
def test_an_id_that_is_short_or_of_other_characters_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="22 to 128"):
        check_id(text, has_keys=False)


def test_an_id_may_be_shorter_where_a_key_protects_it() -> None:
    assert check_id("a" * 16, has_keys=True) == "a" * 16
    with pytest.raises(BadRequest, match="16 to 128"):
        check_id("a" * 15, has_keys=True)


def test_a_stream_is_found_by_its_own_key_and_id_alone() -> None:
    kept = store()
    stream = kept.open("key", A, 0.0)
    assert kept.find("key", A) is stream
    assert [kept.find(owner, name) for owner, name in (("other", A), (None, A), ("key", B), ("ke", f"y\n{A}"))] == (
        [None] * 4
    )


def test_a_new_stream_takes_the_place_of_the_older_one_of_its_conversation() -> None:
    kept = store()
    older = kept.open("key", A, 0.0)
    kept.add(older, b"old")
    newer = kept.open("key", A, 1.0)
    assert kept.find("key", A) is newer
    assert not older.is_kept
    assert kept.num_bytes == 0
    kept.add(older, b"more")
    assert (kept.num_bytes, older.num_bytes) == (0, 0)  # nobody reads it


# --- bytes ------------------------------------------------------------------------------------------------


def test_what_is_kept_can_be_read_from_every_offset() -> None:
    kept = store()
    stream = kept.open(None, A, 0.0)
    kept.add(stream, b"hello ")
    kept.add(stream, b"world")
    assert [stream.read(offset, 4) for offset in (0, 4, 9, 11)] == [b"hell", b"o wo", b"ld", b""]


def test_the_oldest_bytes_of_a_long_stream_are_gone_and_a_reader_is_told_where_to_go_on() -> None:
    kept = store(max_stream_bytes=4)
    stream = kept.open(None, A, 0.0)
    kept.add(stream, b"abcdef")
    assert (stream.start, stream.end, kept.num_bytes) == (2, 6, 4)
    assert stream.read(2, 99) == b"cdef"
    with pytest.raises(Gone, match="from=2"):
        kept.attach(stream, 1)
    assert kept.attach(stream, 2).offset == 2


def test_an_offset_beyond_what_there_is_is_refused() -> None:
    kept = store()
    stream = finished(kept, None, A, b"abc")
    assert kept.attach(stream, 3).offset == 3
    with pytest.raises(BadRequest, match="at most 3"):
        kept.attach(stream, 4)


def test_all_together_make_room_by_finished_ones_of_the_key_that_has_most() -> None:
    kept = store(max_bytes=10)
    mine = finished(kept, "mine", A, b"1234")
    for name in (A, B):
        finished(kept, "yours", name, b"1")
    running = kept.open("mine", B, 5.0)
    kept.add(running, b"12345")
    assert not mine.is_kept
    assert [kept.find("yours", name) is not None for name in (A, B)] == [True, True]
    assert kept.num_bytes == 7


def test_with_nothing_finished_the_largest_one_loses_its_oldest_bytes() -> None:
    kept = store(max_bytes=10)
    large, small = kept.open("a", A, 0.0), kept.open("b", B, 0.0)
    kept.add(large, b"12345678")
    kept.add(small, b"1234")
    assert (large.start, small.start, kept.num_bytes) == (2, 0, 10)


def test_a_finished_stream_that_somebody_reads_is_not_forgotten_for_others() -> None:
    kept = store(max_bytes=10)
    stream = finished(kept, "a", A, b"12345678")
    reader = kept.attach(stream, 0)
    other = kept.open("b", B, 0.0)
    kept.add(other, b"12")
    assert stream.is_kept
    kept.detach(reader, 1.0)
    kept.add(other, b"1")
    assert not stream.is_kept


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 40), st.booleans()), max_size=40)
)
def test_no_bound_of_bytes_or_of_number_is_ever_passed(steps: list[tuple[str, str, int, bool]]) -> None:
    kept = store(max_bytes=64, max_stream_bytes=32, max_count=4)
    for owner, name, size, is_last in steps:
        stream = kept.find(owner, name)
        try:
            stream = stream if stream is not None and not stream.is_over else kept.open(owner, name, 0.0)
        except TooManyRequests:
            continue
        kept.add(stream, b"x" * size)
        if is_last:
            kept.finish(stream, 0.0)
        found = [one for o in "abc" for n in "xy" if (one := kept.find(o, n)) is not None]
        assert kept.num_bytes == sum(one.num_bytes for one in found) <= 64
        assert all(one.num_bytes <= 32 for one in found)
        assert sum(kept.counts().values()) == len(found) <= 4


# --- how many ---------------------------------------------------------------------------------------------


def test_one_key_has_a_quarter_of_the_places_and_its_finished_ones_make_room() -> None:
    kept = store(max_count=8)
    first = kept.open("key", A, 0.0)
    kept.open("key", B, 0.0)
    with pytest.raises(TooManyRequests) as refused:
        kept.open("key", "c" * 24, 0.0)
    assert refused.value.code == "too_many_streams"
    assert kept.open("other", A, 0.0).is_kept
    kept.finish(first, 1.0)
    assert kept.open("key", "c" * 24, 1.0).is_kept
    assert not first.is_kept


def test_a_server_without_keys_has_all_places() -> None:
    kept = store(max_count=4)
    for number in range(4):
        kept.open(None, f"{number}" * 24, 0.0)
    with pytest.raises(TooManyRequests):
        kept.open(None, A, 0.0)
    assert kept.open(None, "0" * 24, 0.0).is_kept  # in the place of the older one


def test_a_stream_has_few_readers_at_once() -> None:
    kept = store()
    stream = kept.open(None, A, 0.0)
    readers = [kept.attach(stream, 0) for _ in range(MAX_READERS)]
    with pytest.raises(TooManyRequests, match="read this reply already"):
        kept.attach(stream, 0)
    kept.detach(readers[0], 0.0)
    kept.attach(stream, 0)


# --- slow readers -----------------------------------------------------------------------------------------


def test_there_is_room_until_somebody_would_lose_what_it_has_not_read() -> None:
    kept = store(max_stream_bytes=10)
    stream = kept.open(None, A, 0.0)
    reader = kept.attach(stream, 0)
    kept.add(stream, b"1234567")
    assert kept.has_room(stream, 3)
    assert not kept.has_room(stream, 4)
    reader.offset = 1
    assert kept.has_room(stream, 4)
    reader.offset = 7
    assert kept.has_room(stream, 99)  # it has read everything: nothing is lost to it by waiting no longer


def test_a_reader_that_is_left_behind_is_none_any_more() -> None:
    kept = store(max_stream_bytes=10)
    stream = kept.open(None, A, 0.0)
    slow, quick = kept.attach(stream, 0), kept.attach(stream, 0)
    kept.add(stream, b"123456789")
    quick.offset = 9
    kept.leave_behind(stream, 4, 3.0)
    assert (slow.is_lost, quick.is_lost) == (True, False)
    assert stream.readers == {quick}
    assert kept.has_room(stream, 4)


def test_a_forgotten_stream_is_read_to_its_end_by_those_who_read_it() -> None:
    kept = store()
    stream = kept.open(None, A, 0.0)
    reader = kept.attach(stream, 0)
    kept.add(stream, b"abc")
    kept.forget(stream)
    kept.add(stream, b"def")
    assert (stream.read(0, 99), kept.num_bytes) == (b"abcdef", 6)
    kept.detach(reader, 1.0)
    assert (stream.num_bytes, kept.num_bytes) == (0, 0)


def test_what_is_still_read_of_forgotten_streams_counts_for_the_bound_of_all() -> None:
    kept = store(max_bytes=10)
    for _ in range(4):  # a client that asks again and again and reads none of it
        stream = kept.open(None, A, 0.0)
        kept.attach(stream, 0)
        kept.add(stream, b"12345678")
        assert kept.num_bytes <= 10
        assert stream.num_bytes == 8  # those that nobody can find any more lose first


# --- time -------------------------------------------------------------------------------------------------


def test_a_stream_that_nobody_reads_is_abandoned_after_its_time() -> None:
    kept = store(detached_s=10.0)
    stream = kept.open(None, A, 100.0)
    reader = kept.attach(stream, 0)
    assert (kept.next_due_s(), kept.abandoned(10_000.0)) == (None, [])
    kept.detach(reader, 200.0)
    assert kept.next_due_s() == 210.0
    assert kept.abandoned(209.0) == []
    assert kept.abandoned(210.0) == [stream]
    assert stream.is_kept  # what it has said can still be read


def test_a_finished_stream_is_forgotten_after_its_time_and_after_its_last_reader() -> None:
    kept = store(kept_s=10.0)
    stream = finished(kept, None, A, b"abc", at_s=100.0)
    reader = kept.attach(stream, 0)
    kept.abandoned(1000.0)
    assert stream.is_kept
    kept.detach(reader, 1000.0)
    assert kept.next_due_s() == 1010.0
    kept.abandoned(1010.0)
    assert kept.find(None, A) is None
    assert kept.next_due_s() is None


def test_streams_are_counted_by_whether_they_are_read_and_over() -> None:
    kept = store()
    kept.attach(kept.open(None, A, 0.0), 0)
    kept.open(None, B, 0.0)
    finished(kept, None, "c" * 24, b"")
    assert kept.counts() == {"attached": 1, "detached": 1, "finished": 1}
