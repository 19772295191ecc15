"""Who of the waiting requests comes next."""

from __future__ import annotations

import pytest

from router.events import LeaseId
from router.waiting import Waiter, WaitingLine


def line_of(*waiters: tuple[int, int, str | None]) -> WaitingLine:
    line = WaitingLine()
    for age, (lease_id, priority, key_id) in enumerate(waiters):
        line.join(Waiter(LeaseId(lease_id), priority, key_id, float(age)))
    return line


def served(line: WaitingLine, held: dict[str | None, int] | None = None) -> list[int]:
    """Return who is served, one after the other, while all that were served before still run."""
    order = []
    num_running = dict(held or {})
    while line:
        waiter = line.pop_next(num_running)
        num_running[waiter.key_id] = num_running.get(waiter.key_id, 0) + 1
        order.append(int(waiter.lease_id))
    return order


def take(line: WaitingLine, *tokens: int) -> list[str | None]:
    """Return the keys of those who are served one after the other, each until its request has had so many tokens."""
    keys = []
    for num in tokens:
        waiter = line.pop_next({})
        line.settle(waiter.lease_id, num)
        keys.append(waiter.key_id)
    return keys


def test_equals_are_served_in_the_order_of_their_arrival() -> None:
    assert served(line_of((3, 0, None), (1, 0, None), (2, 0, None))) == [3, 1, 2]


def test_a_higher_priority_comes_before_an_older_request() -> None:
    assert served(line_of((1, 0, None), (2, 5, None), (3, -1, None))) == [2, 1, 3]


def test_a_key_that_floods_the_line_does_not_keep_another_key_waiting() -> None:
    assert served(line_of((1, 0, "big"), (2, 0, "big"), (3, 0, "big"), (4, 0, "small"))) == [1, 4, 2, 3]


def test_of_two_keys_that_have_had_the_same_the_one_with_fewer_running_requests_is_next() -> None:
    assert served(line_of((1, 0, "big"), (2, 0, "small"), (3, 0, "small")), {"big": 2}) == [2, 1, 3]


def test_a_key_whose_answers_are_long_has_fewer_of_them() -> None:
    line = line_of(*((number, 0, "long" if number % 2 else "short") for number in range(12)))
    keys = []
    for _ in range(9):
        waiter = line.pop_next({})
        line.settle(waiter.lease_id, 1000 if waiter.key_id == "long" else 200)
        keys.append(waiter.key_id)
    assert (keys.count("long"), keys.count("short")) == (3, 6), "all short ones came while two long ones were answered"


def test_a_key_of_twice_the_weight_gets_twice_the_tokens() -> None:
    line = WaitingLine()
    for number in range(30):
        key, weight = ("heavy", 2.0) if number % 2 else ("light", 1.0)
        line.join(Waiter(LeaseId(number), 0, key, 0.0, weight=weight))
    keys = take(line, *[100] * 15)
    assert (keys.count("heavy"), keys.count("light")) == (10, 5)


def test_requests_that_run_count_before_anybody_knows_what_they_take() -> None:
    line = line_of(*((number, 0, "burst") for number in range(6)), (9, 0, "other"))
    assert [line.pop_next({}).key_id for _ in range(3)] == ["burst", "other", "burst"]


def test_what_a_request_was_charged_beyond_its_tokens_is_given_back_at_its_end() -> None:
    line = line_of((1, 0, "a"), (2, 0, "a"), (3, 0, "b"), (4, 0, "b"))
    first, second = line.pop_next({}), line.pop_next({})
    assert (first.key_id, second.key_id) == ("a", "b")
    line.settle(second.lease_id, 300)
    line.settle(first.lease_id, 10)
    assert line.pop_next({}).key_id == "a", "10 tokens are less than 300"


def test_a_request_of_which_nobody_knows_what_it_took_stays_charged() -> None:
    line = line_of((1, 0, "a"), (2, 0, "a"), (3, 0, "b"), (4, 0, "b"))
    first, second = line.pop_next({}), line.pop_next({})
    line.settle(first.lease_id, None)
    line.settle(second.lease_id, 10)
    assert line.pop_next({}).key_id == "b"


def test_a_key_that_was_idle_has_saved_nothing_up() -> None:
    line = line_of(*((number, 0, "busy") for number in range(60)))
    take(line, *[500] * 20)
    for number in range(100, 140):
        line.join(Waiter(LeaseId(number), 0, "back", 0.0))
    keys = take(line, *[500] * 20)
    assert (keys.count("back"), keys.count("busy")) == (10, 10)


def test_a_key_that_holds_one_slow_request_saves_nothing_up_meanwhile() -> None:
    line = line_of((0, 0, "slow"), *((number, 0, "busy") for number in range(1, 60)))
    slow = line.pop_next({})
    take(line, *[500] * 20)
    for number in range(100, 140):
        line.join(Waiter(LeaseId(number), 0, "slow", 0.0))
    line.settle(slow.lease_id, 0)
    keys = take(line, *[500] * 20)
    assert keys.count("slow") <= 11


def test_what_a_key_had_while_nobody_else_waited_is_not_held_against_it() -> None:
    line = line_of(*((number, 0, "early") for number in range(60)))
    take(line, *[1000] * 30)
    for number in range(100, 140):
        line.join(Waiter(LeaseId(number), 0, "late", 0.0))
    keys = take(line, *[1000] * 10)
    assert keys[0] == "late"
    assert keys.count("early") == 5


def test_a_newcomer_does_not_wait_until_wrong_guesses_about_another_key_are_made_good() -> None:
    line = line_of(*((number, 0, "busy") for number in range(60)))
    take(line, 5000)
    for waiter in [line.pop_next({}) for _ in range(6)]:
        line.settle(waiter.lease_id, 0)
    line.join(Waiter(LeaseId(100), 0, "new", 0.0))
    assert "new" in take(line, 10, 10)


def test_all_begin_anew_when_nobody_waits_or_runs() -> None:
    line = line_of((1, 0, "a"))
    take(line, 5000)
    assert line.granted == frozenset()
    line.join(Waiter(LeaseId(2), 0, "a", 1.0))
    line.join(Waiter(LeaseId(3), 0, "b", 2.0))
    assert take(line, 1) == ["a"], "the older one, as nobody has had anything"


def test_what_urgent_requests_take_is_not_reckoned_against_other_ones() -> None:
    line = line_of((1, 1, "a"), (2, 1, "a"), (3, 0, "a"), (4, 0, "b"))
    assert take(line, 900, 900, 10) == ["a", "a", "a"]


def test_priority_goes_before_the_share_of_a_key() -> None:
    assert served(line_of((1, 1, "big"), (2, 0, "small")), {"big": 9}) == [1, 2]


def test_who_has_left_is_not_served() -> None:
    line = line_of((1, 0, None), (2, 0, None))
    line.leave(LeaseId(1))
    line.leave(LeaseId(7))
    assert [int(waiter.lease_id) for waiter in line] == [2]
    assert served(line) == [2]


def test_the_oldest_is_the_first_who_came_whatever_its_priority() -> None:
    line = line_of((1, 0, None), (2, 5, None))
    assert line.oldest is not None
    assert line.oldest.lease_id == 1
    assert line.max_priority == 5


def test_nobody_comes_next_in_an_empty_line() -> None:
    line = WaitingLine()
    assert line.oldest is None
    assert line.max_priority == 0
    with pytest.raises(ValueError, match="empty"):
        line.pop_next({})


def test_whoever_goes_first_does_so_among_its_equals_alone_and_is_charged_there() -> None:
    line = WaitingLine()
    line.join(Waiter(LeaseId(1), 0, "busy", 0.0))
    line.settle(line.pop_next({}).lease_id, 1000)
    line.join(Waiter(LeaseId(2), 0, "new", 1.0))
    line.join(Waiter(LeaseId(3), 1, "new", 2.0))
    line.join(Waiter(LeaseId(4), 0, "busy", 3.0, goes_first=True))
    assert [line.pop_next({}).lease_id for _ in range(3)] == [3, 4, 2]
