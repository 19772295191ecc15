"""What is kept of responses: found by key and id, bounded in bytes, count and age."""

from __future__ import annotations

import pytest

from router.conversations import Conversations, Kept, read_kept

LINES = b'{"id":"resp_1","num_input_items":2}\n{"id":"resp_1"}\n{"n":1}\n{"n":2}\n{"n":3}'


def kept(id_: str, num_bytes: int = 0) -> Kept:
    return Kept(id_, 1, b"{}", b"x" * num_bytes)


def ids(conversations: Conversations, *asked: str, key: str | None = None, now_s: float = 0.0) -> list[str]:
    return [id_ for id_ in asked if conversations.find(key, id_, now_s) is not None]


def test_what_a_worker_gives_is_cut_into_the_response_and_the_items() -> None:
    read = read_kept(LINES, (1, 2))
    assert (read.id, read.response, read.items) == ("resp_1", b'{"id":"resp_1"}', b'{"n":1}\n{"n":2}\n{"n":3}')
    assert read.input_items == [b'{"n":1}', b'{"n":2}']
    assert read.prefixes == (1, 2)


def test_a_response_without_an_answer_has_input_items_all_the_same() -> None:
    assert read_kept(b'{"id":"r","num_input_items":1}\n{}\n{"n":1}\n').input_items == [b'{"n":1}']


@pytest.mark.parametrize("lines", [b"", b"{}", b"{}\n{}", b"5\n{}\n{}", b"{}\n{}\n{}", b"junk\n{}\n{}"])
def test_what_is_not_in_that_form_is_refused(lines: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_kept(lines)


def test_a_response_is_found_by_its_own_key_alone() -> None:
    conversations = Conversations()
    conversations.keep("a", kept("r1"), 0.0)
    conversations.keep(None, kept("r2"), 0.0)
    assert ids(conversations, "r1", "r2", key="a") == ["r1"]
    assert ids(conversations, "r1", "r2", key="b") == []
    assert ids(conversations, "r1", "r2") == ["r2"]


def test_a_response_that_was_deleted_is_gone() -> None:
    conversations = Conversations()
    conversations.keep("a", kept("r1"), 0.0)
    assert not conversations.forget("b", "r1")
    assert conversations.forget("a", "r1")
    assert not conversations.forget("a", "r1")
    assert (conversations.num_kept, conversations.num_bytes) == (0, 0)


def test_the_one_unused_longest_goes_when_there_are_too_many() -> None:
    conversations = Conversations(max_count=2)
    conversations.keep(None, kept("r1"), 0.0)
    conversations.keep(None, kept("r2"), 1.0)
    assert ids(conversations, "r1") == ["r1"]  # used again
    conversations.keep(None, kept("r3"), 2.0)
    assert ids(conversations, "r1", "r2", "r3") == ["r1", "r3"]


def test_the_ones_unused_longest_go_when_they_take_too_much() -> None:
    conversations = Conversations(max_bytes=10_000)
    for number in range(4):
        conversations.keep(None, kept(f"r{number}", 2_000), 0.0)
    assert ids(conversations, "r0", "r1", "r2", "r3") == ["r1", "r2", "r3"]
    assert conversations.num_bytes <= 10_000


def test_the_key_that_takes_most_makes_room_for_others() -> None:
    conversations = Conversations(max_bytes=10_000, max_count=5)
    for number in range(5):
        conversations.keep("greedy", kept(f"r{number}"), 0.0)
    conversations.keep("modest", kept("m1"), 0.0)
    conversations.keep("greedy", kept("r5"), 0.0)
    assert ids(conversations, "m1", key="modest") == ["m1"]
    conversations.keep("greedy", kept("big", 9_000), 0.0)
    assert ids(conversations, "m1", key="modest") == []  # nothing of its own was left to go
    assert ids(conversations, "r5", "big", key="greedy") == ["big"]


def test_the_newest_stays_even_if_it_is_too_large() -> None:
    conversations = Conversations(max_bytes=2_000)
    conversations.keep("a", kept("r1"), 0.0)
    conversations.keep("b", kept("r2", 50_000), 0.0)
    assert ids(conversations, "r2", key="b") == ["r2"]
    assert conversations.num_kept == 1


def test_one_that_was_not_used_for_too_long_is_forgotten() -> None:
    conversations = Conversations(max_age_s=60.0)
    conversations.keep(None, kept("r1"), 0.0)
    assert ids(conversations, "r1", now_s=50.0) == ["r1"]
    assert ids(conversations, "r1", now_s=100.0) == ["r1"]
    assert ids(conversations, "r1", now_s=161.0) == []
    assert conversations.num_bytes == 0


def test_a_response_kept_again_counts_once() -> None:
    conversations = Conversations()
    for _ in range(2):
        conversations.keep(None, kept("r1", 100), 0.0)
    assert conversations.num_kept == 1
    assert conversations.num_bytes == kept("r1", 100).num_bytes
