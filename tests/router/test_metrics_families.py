"""Samples are written once for each change, so that a page of a thousand models is made quickly."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from router.catalog import Catalog
from router.events import ExitReason, WorkerId
from router.fleet import Fleet
from router.metrics import RouterMetrics
from router.metrics.families import Block, Buckets, Counters, Exemplar, Family, Histograms, Kind, Number, Sample
from router.metrics.page import encode_json, encode_openmetrics, encode_text, wants_openmetrics
from tests.support.busy_metrics import CHAT, FACTS, make_status
from tests.support.http_side import make_spec
from worker.contract import SlotState

NUM_MODELS = 1000


class Counted(Block):
    """Counts how often it was asked for its samples."""

    num_asked = 0

    def samples(self) -> Iterator[Sample]:
        self.num_asked += 1
        yield Sample("x", self.labels, self.num_asked)


def test_a_block_is_written_once_in_each_form_until_it_changes() -> None:
    block = Counted("x", {"a": "b"})
    family = Family("x", Kind.GAUGE, "Help.", [block])
    for _ in range(3):
        assert b'x{a="b"} 1.0\n' in encode_text([family])
    assert block.num_asked == 1
    for _ in range(3):
        encode_openmetrics([family])
        encode_json([family])
    assert block.num_asked == 3
    block.changed()
    assert b'x{a="b"} 4.0\n' in encode_text([family])


def test_what_has_changed_is_shown() -> None:
    counters = Counters("c", "Help.", "a")
    for expected in (1, 2):
        counters.of("b").add()
        for page in (encode_text([counters.family]), encode_openmetrics([counters.family])):
            assert f'c_total{{a="b"}} {expected}.0\n'.encode() in page
        assert f'"value":{expected}.0'.encode() in encode_json([counters.family])
    gauge = Number("g", {}, 5)
    assert gauge.text == b"g 5.0\n"
    gauge.set(-1)
    assert gauge.text == b"g -1.0\n"


@pytest.mark.parametrize(("text", "shown"), [("a\\b", "a\\\\b"), ('a"b', 'a\\"b'), ("a\nb", "a\\nb")])
def test_what_would_end_a_label_is_escaped(text: str, shown: str) -> None:
    assert Number("g", {"a": text}, 1).text == f'g{{a="{shown}"}} 1.0\n'.encode()


def test_the_last_exemplar_of_each_bucket_is_shown() -> None:
    histograms = Histograms("h", "Help.", (1.0, 2.0))
    for request_id, value in (("r1", 0.5), ("r2", 0.7), ("r3", 9.0)):
        histograms.of().observe(value, Exemplar(request_id, value, 100.0))
        assert request_id.encode() in encode_openmetrics([histograms.family])
    assert encode_openmetrics([histograms.family]).decode().splitlines()[2:] == [
        'h_bucket{le="1.0"} 2.0 # {request_id="r2"} 0.7 100.000',
        'h_bucket{le="2.0"} 2.0',
        'h_bucket{le="+Inf"} 3.0 # {request_id="r3"} 9.0 100.000',
        "h_count 3.0",
        "h_sum 10.2",
        "# EOF",
    ]


@pytest.mark.parametrize(
    ("value", "index"), [(0.5, 0), (1.0, 0), (1.0001, 1), (2.0, 1), (3.0, 2), (float("inf"), 2), (-1.0, 0)]
)
def test_a_bucket_holds_what_is_not_above_its_bound(value: float, index: int) -> None:
    buckets = Buckets("h", {}, (1.0, 2.0))
    buckets.observe(value)
    assert buckets.counts == [number == index for number in range(3)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("inf"), b"+Inf"), (float("-inf"), b"-Inf"), (float("nan"), b"NaN"), (2**53, b"9007199254740992.0")],
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, shown: bytes) -> None:
    assert Number("g", {}, value).text == b"g " + shown + b"\n"


# --- a thousand models ------------------------------------------------------------------------------------


def served(num_used: int) -> RouterMetrics:
    """Return the metrics of a fleet of which so many models were used; the first three are busy with prompts."""
    names = [f"model-{number:04}" for number in range(NUM_MODELS)]
    catalog = Catalog({name: make_spec(name) for name in names})
    fleet = Fleet(catalog.policies(), catalog.fleet_limits())
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: fleet.snapshot(100.0), lambda: catalog)
    for number, name in enumerate(names[:num_used]):
        worker = WorkerId(name, 0, 1)
        metrics.request_finished(name, CHAT, "ok", 0.3, request_id="0" * 24, first_byte_s=0.2)
        metrics.lease_granted(name, 0.1, 0.3, "0" * 24)
        metrics.worker_started(name)
        metrics.worker_loaded(name, {"read": 0.2, "total": 0.3})
        metrics.status_received(worker, make_status(7, slots=(SlotState.PROCESSING_PROMPT,) * 4, facts=FACTS))
        if number >= 3:
            metrics.worker_exited(worker, ExitReason.STOPPED)
    return metrics


def test_a_model_that_was_never_used_has_three_lines() -> None:
    metrics = served(0)
    lines = metrics.render()[0].decode().splitlines()
    assert len([line for line in lines if 'model="model-0500"' in line]) == 3
    assert len(lines) < 3 * NUM_MODELS + 300


@pytest.mark.parametrize("num_used", [3, NUM_MODELS])
@pytest.mark.parametrize("form", ["text", "openmetrics", "json"])
def test_a_scrape_writes_only_what_has_changed_since_the_last_one(
    form: str, num_used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = served(num_used)

    def scrape() -> bytes:
        if form == "json":
            return metrics.render_json()
        return metrics.render("application/openmetrics-text" if form == "openmetrics" else None)[0]

    scrape()
    written = []
    for each in (Number, Buckets):
        samples = each.samples
        monkeypatch.setattr(each, "samples", lambda self, samples=samples: written.append(self) or samples(self))
    metrics.request_finished("model-0777", CHAT, "error", 0.3)
    page = scrape()
    assert len(page) > 50 * NUM_MODELS
    assert {"model-0777"} == {block.labels["model"] for block in written if block.name.startswith("corral_request")}
    assert len(written) < 250, "the three that are busy, and the one of which something is new"


def test_a_page_of_a_thousand_used_models_is_made_in_a_fraction_of_a_second() -> None:
    metrics = served(NUM_MODELS)
    metrics.render()
    seconds = []
    for _ in range(5):
        started_s = time.perf_counter()
        metrics.render()
        seconds.append(time.perf_counter() - started_s)
    assert min(seconds) < 0.25, "20 to 30 ms where nothing else runs"


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0", False),
        ("Application/OpenMetrics-Text; version=1.0.0; q=0.000", False),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", True),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text;q=0, application/openmetrics-text;version=0.0.1;q=0.3", True),
        ("application/openmetrics-text;q=x", True),
        ("text/plain", False),
        ("", False),
        ("*/*", False),
    ],
)
def test_openmetrics_is_for_those_who_want_it_most(accept: str, is_wanted: bool) -> None:
    assert wants_openmetrics(accept) is is_wanted
