"""Which texts share a pass: nobody is forgotten, nothing is too big, everybody gets a turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.embedding_batches import DocumentLine, Place


def line_of(*requests: list[int], max_documents: int = 64) -> DocumentLine:
    line = DocumentLine(max_documents=max_documents)
    for number, lengths in enumerate(requests):
        line.add(number, lengths)
    return line


def test_texts_of_one_request_fill_a_pass_with_the_longest_that_fit() -> None:
    line = line_of([3, 50, 40, 10, 30])
    assert line.take(100) == [Place(0, 1), Place(0, 2), Place(0, 3)]
    assert line.take(100) == [Place(0, 4), Place(0, 0)]
    assert line.is_empty


def test_equally_long_texts_keep_their_order() -> None:
    assert line_of([7, 7, 7]).take(14) == [Place(0, 0), Place(0, 1)]


def test_texts_of_several_requests_share_a_pass_in_turn() -> None:
    line = line_of([10, 10, 10, 10], [10, 10])
    assert [place.request for place in line.take(40)] == [0, 1, 0, 1]


def test_short_request_does_not_wait_for_a_long_one_to_end() -> None:
    line = line_of([60] * 100)
    line.take(64)
    line.add(1, [8])
    served = [place.request for _ in range(2) for place in line.take(64)]
    assert 1 in served


def test_each_request_begins_a_pass_in_its_turn() -> None:
    line = line_of([60] * 3, [60] * 3, [60] * 3)
    assert [line.take(64)[0].request for _ in range(9)] == [0, 1, 2] * 3


def test_text_that_is_longer_than_a_pass_goes_alone() -> None:
    line = line_of([300, 10], [20])
    assert [len(line.take(64)) for _ in range(2)] == [2, 1], "the short ones fit together"
    assert line.is_empty
    assert line_of([300]).take(64) == [Place(0, 0)]


def test_pass_has_no_more_texts_than_sequences() -> None:
    line = line_of([1] * 10, [1] * 3, max_documents=4)
    assert [len(line.take(100)) for _ in range(4)] == [4, 4, 4, 1]


def test_dropped_request_gets_no_pass() -> None:
    line = line_of([5, 5], [5])
    line.drop(0)
    line.drop(0)
    assert line.take(100) == [Place(1, 0)]
    assert line.is_empty


def test_request_without_texts_does_not_wait() -> None:
    assert line_of([]).is_empty


@given(
    requests=st.lists(st.lists(st.integers(1, 120), min_size=1, max_size=12), min_size=1, max_size=6),
    max_tokens=st.integers(1, 150),
    max_documents=st.integers(1, 8),
)
def test_every_text_gets_exactly_one_pass_that_is_not_too_big(
    requests: list[list[int]], max_tokens: int, max_documents: int
) -> None:
    line = line_of(*requests, max_documents=max_documents)
    seen: list[Place] = []
    while not line.is_empty:
        places = line.take(max_tokens)
        total = sum(requests[place.request][place.index] for place in places)
        assert 1 <= len(places) <= max_documents
        assert total <= max_tokens or len(places) == 1
        seen += places
    expected = {Place(number, index) for number, lengths in enumerate(requests) for index in range(len(lengths))}
    assert len(seen) == len(expected)
    assert set(seen) == expected
