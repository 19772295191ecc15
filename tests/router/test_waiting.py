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
    order = []
    shares = dict(held or {})
    while line:
        waiter = line.pop_next(shares)
        shares[waiter.key_id] = shares.get(waiter.key_id, 0) + 1
        order.append(int(waiter.lease_id))
    return order


def test_equals_are_served_in_the_order_of_their_arrival() -> None:
    assert served(line_of((3, 0, None), (1, 0, None), (2, 0, None))) == [3, 1, 2]


def test_a_higher_priority_comes_before_an_older_request() -> None:
    assert served(line_of((1, 0, None), (2, 5, None), (3, -1, None))) == [2, 1, 3]


def test_a_key_that_floods_the_line_does_not_keep_another_key_waiting() -> None:
    assert served(line_of((1, 0, "big"), (2, 0, "big"), (3, 0, "big"), (4, 0, "small"))) == [1, 4, 2, 3]


def test_leases_that_a_key_already_holds_count_towards_its_share() -> None:
    assert served(line_of((1, 0, "big"), (2, 0, "small"), (3, 0, "small")), {"big": 2}) == [2, 3, 1]


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
