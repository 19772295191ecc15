"""`corral bench` measures what it says, with prompts that are not alike, and tells of every failure."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from router.cli.bench_figures import COLUMNS, DROPPABLE, Level, Shot, quantile, row_of, sweep
from router.cli.output import make_table
from tests.fakes.corral_http import FakeCorral, as_chunks, refusal
from tests.router.cli.conftest import Corral

COMPLETIONS = "/v1/completions"
ENTRY = {"id": "tiny", "state": "ready", "slots": 2, "context_length": 256, "capabilities": ["completion"]}


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": None}]}


USAGE = {"prompt_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
ANSWER = as_chunks(text("a"), text("b"), text("c"), {"choices": [], "usage": USAGE})


@pytest.fixture
def tiny(fake: FakeCorral) -> FakeCorral:
    """A server with a model of two slots that answers with three tokens."""
    fake.answers("GET", "/v1/models/tiny", ENTRY)
    fake.answers("POST", "/tokenize", {"tokens": list(range(100))})
    fake.answers("POST", COMPLETIONS, ANSWER)
    return fake


# --- arithmetic -------------------------------------------------------------------------------------------


def test_quantiles_lie_between_what_was_measured() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert quantile([0.0, 100.0], 0.95) == 95.0


@pytest.mark.parametrize(("places", "levels"), [(1, [1, 2]), (2, [1, 2, 4]), (3, [1, 2, 4, 6]), (4, [1, 2, 4, 8])])
def test_the_sweep_goes_up_to_twice_the_slots(places: int, levels: list[int]) -> None:
    assert sweep(places) == levels


def test_figures_are_those_of_the_requests_that_were_answered() -> None:
    good = Shot(0.1, (0.25, 0.25), 8, 2, 3)
    level = Level(2, [good, Shot(0.3, (0.25, 0.75), 8, 2, 3), Shot(failure="full"), Shot(failure="full")], 2.0)
    assert good.tokens_per_second == 4.0
    assert row_of(level) == ("2", "4", "200 ms", "290 ms", "250 ms", "675 ms", "3.0", "3.0", "2")
    assert level.failures == {"full": 2}
    assert level.cached_share() == 0.25
    assert level.to_json()["errors"] == 2


def test_what_was_not_measured_is_a_dash_and_never_a_nought() -> None:
    nothing = Level(1, [Shot(failure="x")], 1.0)
    assert row_of(nothing) == ("1", "1", None, None, None, None, None, None, "1")
    assert Shot(0.1, (), 8, 0, 1).tokens_per_second is None
    assert Level(1, [Shot(0.1)], 1.0).total_per_second is None


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    level = Level(16, [Shot(1.25, (0.25, 0.25), 8, 2, 3)] * 48, 2.0)
    terminal = Console(file=io.StringIO(), width=width)
    terminal.print(make_table(COLUMNS, [row_of(level)], width, numbers=COLUMNS, droppable=DROPPABLE))
    lines = terminal.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 3, "nothing is folded"
    for name in ("AT ONCE", "FIRST p50", "TOKENS/S ALL", "ERRORS"):
        assert name in lines[0]


# --- the command ------------------------------------------------------------------------------------------


def test_a_sweep_prints_a_row_for_each_number_of_requests_at_once(tiny: FakeCorral, corral: Corral) -> None:
    done = corral("bench", "tiny", "-p", "8", "-t", "3", "-r", "3")
    assert done.exit_code == 0, done.output
    head, *rows, cached = done.stdout.splitlines()
    assert head.split() == " ".join(COLUMNS).split()
    assert [row.split()[:2] for row in rows] == [["1", "3"], ["2", "3"], ["4", "3"]]
    assert cached == "up to 25 % of the prompts came from the server's cache"
    assert done.stderr.splitlines() == ["loading and warming up", "1 at once", "2 at once", "4 at once"]


def test_every_request_has_a_prompt_of_its_own_of_the_length_that_was_asked_for(
    tiny: FakeCorral, corral: Corral
) -> None:
    corral("bench", "tiny", "-p", "8", "-t", "3", "-c", "2", "-r", "4")
    bodies = tiny.bodies("POST", COMPLETIONS)
    assert len(bodies) == 5, "one of them warms up"
    assert {len(body["prompt"]) for body in bodies} == {8}
    assert {(body["max_tokens"], body["ignore_eos"], body["stream"]) for body in bodies} == {(3, True, True)}
    texts = [body["content"] for body in tiny.bodies("POST", "/tokenize")]
    assert len(set(texts)) == 5
    assert len({body["seed"] for body in bodies}) == 5


def test_one_prompt_for_all_where_that_is_wanted(tiny: FakeCorral, corral: Corral) -> None:
    corral("bench", "tiny", "-p", "8", "-t", "3", "-c", "1", "--same-prompt")
    assert len({body["content"] for body in tiny.bodies("POST", "/tokenize")}) == 1


def test_json_has_all_figures(tiny: FakeCorral, corral: Corral) -> None:
    found = json.loads(corral("bench", "tiny", "-p", "8", "-t", "3", "-c", "1,2", "--json").stdout)
    assert (found["model"], found["prompt_tokens"], found["answer_tokens"]) == ("tiny", 8, 3)
    assert [level["concurrency"] for level in found["levels"]] == [1, 2]
    assert [level["requests"] for level in found["levels"]] == [4, 6]
    assert found["levels"][0]["ttft_s"]["p50"] > 0


def test_failures_are_counted_with_their_reasons(tiny: FakeCorral, corral: Corral) -> None:
    full = refusal(429, "the queue is full", "queue_full")
    tiny.answers("POST", COMPLETIONS, ANSWER, ANSWER, full, ANSWER)
    done = corral("bench", "tiny", "-p", "8", "-t", "3", "-c", "1", "-r", "4")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].endswith("  1")
    assert "1 request failed: 1 x the queue is full" in done.stderr


def test_a_level_without_any_answer_ends_the_sweep(tiny: FakeCorral, corral: Corral) -> None:
    tiny.answers("POST", COMPLETIONS, ANSWER, refusal(429, "full", "queue_full"))
    done = corral("bench", "tiny", "-p", "8", "-t", "3", "-r", "2")
    assert len(done.stdout.splitlines()) == 2
    assert "2 requests failed" in done.stderr


def test_a_model_that_cannot_be_loaded_is_told_before_anything_is_measured(tiny: FakeCorral, corral: Corral) -> None:
    tiny.answers("POST", COMPLETIONS, refusal(503, "Model 'tiny' cannot be loaded: broken", "model_unavailable"))
    done = corral("bench", "tiny", "-p", "8")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be loaded: broken" in done.stderr


def test_another_servers_model_is_measured_without_what_it_does_not_know(tiny: FakeCorral, corral: Corral) -> None:
    tiny.answers("POST", "/tokenize", refusal(400, "not here"))
    tiny.answers("POST", COMPLETIONS, refusal(400, "unknown field ignore_eos"), ANSWER)
    assert corral("bench", "tiny", "-p", "8", "-t", "3", "-c", "1").exit_code == 0
    last = tiny.bodies("POST", COMPLETIONS)[-1]
    assert "ignore_eos" not in last
    assert len(last["prompt"].split()) == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "200", "-t", "100"), "more than the 256 tokens"),
        (("-c", "0"), "must be numbers from 1 to"),
        (("-c", "1,many"), "must be numbers from 1 to"),
        (("-c", "1000"), "must be numbers from 1 to"),
        (("--plot", "x.txt"), "writes .png, .svg and .pdf"),
        (("--plot", "no/where/x.png"), "there is no folder"),
    ],
)
def test_what_cannot_be_measured_is_told_at_once(
    tiny: FakeCorral, corral: Corral, arguments: tuple[str, ...], words: str
) -> None:
    done = corral("bench", "tiny", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert tiny.bodies("POST", COMPLETIONS) == []


def test_a_model_without_text_is_told_so(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/v1/models/tiny", ENTRY | {"capabilities": ["embedding"]})
    done = corral("bench", "tiny")
    assert (done.exit_code, done.stderr) == (1, "corral: tiny makes no text: it is for embedding\n")


@pytest.mark.slow
def test_a_plot_is_a_picture(tiny: FakeCorral, corral: Corral, tmp_path: Path) -> None:
    file = tmp_path / "sweep.png"
    done = corral("bench", "tiny", "-p", "8", "-t", "3", "-c", "1,2", "--plot", str(file))
    assert done.exit_code == 0, done.output
    assert file.read_bytes().startswith(b"\x89PNG")
    assert f"drawn into {file}" in done.stderr


def test_a_plot_without_matplotlib_names_the_extra(
    tiny: FakeCorral, corral: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = corral("bench", "tiny", "--plot", "x.png")
    assert done.exit_code == 1
    assert "-m pip install matplotlib" in done.stderr
    assert tiny.asked == []


def test_interrupted_sweep_prints_what_is_measured_already(
    tiny: FakeCorral, corral: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.cli.bench_shots import Range

    fire = Range.fire

    def fire_once(self: Range, concurrency: int, *rest: Any) -> Level:
        if concurrency > 1:
            raise KeyboardInterrupt
        return fire(self, concurrency, *rest)

    monkeypatch.setattr(Range, "fire", fire_once)
    done = corral("bench", "tiny", "-p", "8", "-t", "3", "-r", "2")
    assert done.exit_code == 130
    assert len(done.stdout.splitlines()) == 3
