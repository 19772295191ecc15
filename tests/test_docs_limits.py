"""docs/limits.md names every limit, header and field of usage that there is, and the bounds that hold."""

from __future__ import annotations

from router.auth import Grant, Scope
from router.dialects import Dialect
from router.fair_share import FIRST_GUESS, LEAST_GUESS
from router.key_limits import entry_of
from router.key_usage import KeyUsage, Level, Limit, UsageView
from router.rate_headers import rate_headers
from tests.test_docs import name_in, quoted, rows, section, text_of
from worker.engine.admission import AGEING_S
from worker.engine.budget import GAP_FACTOR, MAX_GAP_S, MIN_GAP_S, MIN_ROWS_BESIDE
from worker.engine.rule_work import MOST_WAITS, PATIENCE_S

LIMITS = text_of("docs/limits.md")


def test_every_limit_is_explained() -> None:
    assert {name_in(row[0]) for row in rows(section(LIMITS, "## Limits"))} == {limit.value for limit in Limit}


def test_every_header_is_named() -> None:
    level = Level(1, 1, 1.0)
    view = UsageView(0, 0, 0, 0, level, level)
    sent = {name for dialect in Dialect for name in rate_headers(dialect, view, 0.0)}
    assert {name for row in rows(section(LIMITS, "## Headers")) for name in quoted(row[0])} == sent


def test_every_field_of_usage_is_explained() -> None:
    grant = Grant("k", frozenset({Scope.INFERENCE}))
    shown = entry_of(grant, KeyUsage().view("k", grant.limits, 0.0))
    part = section(LIMITS, "## Usage")
    assert {name for row in rows(part) for name in quoted(row[0])} == shown.keys()
    assert {"limit", "remaining", "full_in_s"} <= set(quoted(part))


def test_the_bounds_are_those_of_the_engine() -> None:
    text = section(LIMITS, "## What another key's requests may cost")
    assert f"five usual gaps, at least {MIN_GAP_S * 1000:.0f} and at most {MAX_GAP_S * 1000:.0f} ms" in text
    assert GAP_FACTOR == 5
    assert f"a pass with {MIN_ROWS_BESIDE} |" in text
    assert f"| {PATIENCE_S:g} s more." in text
    assert f"{MOST_WAITS} times as long" in text
    assert f"under way for {AGEING_S:g} seconds" in section(LIMITS, "## Shares")
    assert LEAST_GUESS < FIRST_GUESS
