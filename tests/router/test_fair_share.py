"""Shares of a model's tokens between keys that flood it, come late, or ask for little: request by request."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, cycle

from hypothesis import given, settings
from hypothesis import strategies as st

from router.events import LeaseId
from router.waiting import Waiter, WaitingLine


@dataclass
class Client:
    """A key whose requests take these numbers of tokens in turn, and of which `depth` always wait or run."""

    key_id: str
    sizes: Sequence[int]
    weight: float = 1.0
    depth: int = 8
    after: int = 0
    """It comes after so many requests of others were granted."""
    served: int = 0
    """Tokens of requests that have ended."""
    waits: list[int] = field(default_factory=list)
    """How many requests of others were granted while each of its own waited."""


class Slots:
    """A model with so many places, each of which gives one token a second."""

    def __init__(self, num_slots: int, *clients: Client) -> None:
        self.line = WaitingLine()
        self.now_s = 0.0
        self._clients = {client.key_id: client for client in clients}
        self._sizes = {client.key_id: cycle(client.sizes) for client in clients}
        self._ids = count(1)
        self._num_slots = num_slots
        self._ends: list[tuple[float, int, str, int]] = []
        self._num_granted = 0
        self._came_at: dict[int, int] = {}

    def run(self, num_granted: int) -> None:
        """Play until so many requests have been granted."""
        to_come = sorted((client.after, client.key_id) for client in self._clients.values())
        while self._num_granted < num_granted:
            while to_come and to_come[0][0] <= self._num_granted:
                client = self._clients[to_come.pop(0)[1]]
                for _ in range(client.depth):
                    self._join(client)
            self._grant()
            self.now_s, lease_id, key_id, size = heapq.heappop(self._ends)
            self.line.settle(LeaseId(lease_id), size)
            self._clients[key_id].served += size
            self._join(self._clients[key_id])

    def _join(self, client: Client) -> None:
        number = next(self._ids)
        self._came_at[number] = self._num_granted
        self.line.join(Waiter(LeaseId(number), 0, client.key_id, self.now_s, weight=client.weight))

    def _grant(self) -> None:
        while self.line and len(self._ends) < self._num_slots:
            running = Counter[str | None](key_id for _, _, key_id, _ in self._ends)
            waiter = self.line.pop_next(running)
            assert waiter.key_id is not None
            client, number = self._clients[waiter.key_id], int(waiter.lease_id)
            client.waits.append(self._num_granted - self._came_at.pop(number))
            self._num_granted += 1
            size = next(self._sizes[client.key_id])
            heapq.heappush(self._ends, (self.now_s + size, number, client.key_id, size))


@settings(max_examples=40, deadline=None)
@given(
    long=st.lists(st.integers(100, 2000), min_size=1, max_size=5),
    short=st.lists(st.integers(1, 100), min_size=1, max_size=5),
    weights=st.sampled_from([(1.0, 2.0), (1.0, 1.0), (4.0, 1.0)]),
    num_slots=st.integers(1, 6),
)
def test_tokens_of_two_keys_that_always_wait_go_by_their_weights_whatever_the_size_of_their_requests(
    long: list[int], short: list[int], weights: tuple[float, float], num_slots: int
) -> None:
    flood, small = Client("flood", long, weights[0]), Client("small", short, weights[1])
    Slots(num_slots, flood, small).run(300)
    bound = (num_slots + 1) * max(256, *long) * (1 / flood.weight + 1 / small.weight)
    assert abs(flood.served / flood.weight - small.served / small.weight) <= bound


def test_a_flood_of_long_requests_gets_a_third_when_its_weight_is_half_of_the_other_keys() -> None:
    flood, small = Client("flood", [1000], 1.0), Client("small", [20, 40], 2.0)
    Slots(4, flood, small).run(2000)
    assert 0.32 < flood.served / (flood.served + small.served) < 0.35


@settings(max_examples=40, deadline=None)
@given(
    long=st.lists(st.integers(64, 2000), min_size=1, max_size=6),
    size=st.integers(1, 50),
    num_slots=st.integers(1, 6),
    num_floods=st.integers(1, 3),
)
def test_a_key_that_sends_one_short_request_at_a_time_waits_for_one_of_each_other_key(
    long: list[int], size: int, num_slots: int, num_floods: int
) -> None:
    floods = [Client(f"flood-{number}", long) for number in range(num_floods)]
    small = Client("small", [size], depth=1, after=50)
    Slots(num_slots, *floods, small).run(150)
    assert small.waits
    wrong_guesses = num_slots * (max(long) - min(long)) / min(long)  # of what runs: they are made good first
    assert max(small.waits) <= num_floods * (1 + wrong_guesses)


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 8.0]), min_size=2, max_size=5),
    sizes=st.lists(st.integers(10, 800), min_size=1, max_size=5),
    num_slots=st.integers(1, 6),
)
def test_no_key_starves_however_small_its_weight_is(weights: list[float], sizes: list[int], num_slots: int) -> None:
    clients = [Client(f"k{number}", sizes, weight) for number, weight in enumerate(weights)]
    Slots(num_slots, *clients).run(400)
    all_served, all_weights = sum(client.served for client in clients), sum(weights)
    for client in clients:
        assert client.served >= 0.5 * all_served * client.weight / all_weights


def test_requests_without_keys_are_served_by_age_alone() -> None:
    line = WaitingLine()
    for number in range(20):
        line.join(Waiter(LeaseId(number), 0, None, float(number)))
    order = []
    while line:
        waiter = line.pop_next({})
        order.append(int(waiter.lease_id))
        if len(order) % 3 == 0:
            line.settle(waiter.lease_id, 100 * len(order))
    assert order == list(range(20))
