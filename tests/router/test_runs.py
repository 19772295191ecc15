"""What is kept of workers that are alive, and of those that are gone: nothing of models that are not served."""

from __future__ import annotations

from typing import Any, cast

from router.events import WorkerId
from router.log_tail import LogTail
from router.runs import Runs
from tests.support.http_side import make_catalog, make_spec

FIRST, NEXT, OTHER = WorkerId("a", 0, 1), WorkerId("a", 0, 2), WorkerId("b", 0, 1)


class FakeRun:
    """As much of a worker's run as is looked at."""

    def __init__(self, worker: WorkerId) -> None:
        self.worker = worker
        self.log = LogTail()
        self.adopted: list[Any] = []

    def adopt(self, spec: Any) -> None:
        self.adopted.append(spec)


def runs_of(*workers: WorkerId) -> tuple[Runs, list[FakeRun]]:
    runs, made = Runs(), [FakeRun(worker) for worker in workers]
    for run in made:
        runs.add(cast(Any, run))
    return runs, made


def test_the_last_words_of_a_worker_are_kept_until_its_model_has_another_one() -> None:
    runs, (run,) = runs_of(FIRST)
    assert runs.remove(FIRST)
    assert not runs.remove(FIRST), "it was not alive any more"
    assert runs.logs("a") == [(FIRST, run.log)]
    following = FakeRun(NEXT)
    runs.add(cast(Any, following))
    assert runs.logs("a") == [(NEXT, following.log)]


def test_nothing_is_kept_of_a_model_that_is_not_served_any_more() -> None:
    runs, (run, *_) = runs_of(FIRST, OTHER)
    runs.remove(FIRST)
    runs.remove(OTHER)
    runs.adopt(make_catalog(make_spec("a")))
    assert runs.logs("a") == [(FIRST, run.log)]
    assert runs.logs("b") == []


def test_each_worker_learns_what_the_catalogue_says_of_its_model() -> None:
    runs, (run, other) = runs_of(FIRST, OTHER)
    catalog = make_catalog(make_spec("a"))
    runs.adopt(catalog)
    assert (run.adopted, other.adopted) == ([catalog.models["a"]], [None])
