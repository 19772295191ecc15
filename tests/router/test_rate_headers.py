"""The headers of limits, letter by letter as clients read them."""

from __future__ import annotations

import pytest

from router.cors import Cors
from router.dialects import Dialect
from router.key_usage import Level, UsageView
from router.rate_headers import duration, rate_headers

BOTH = UsageView(1, 2, 0, 3, Level(60, 59, 1.0), Level(20_000, 0, 63.0))


@pytest.mark.parametrize("dialect", [Dialect.OPENAI, Dialect.RESPONSES, Dialect.OLLAMA, Dialect.LLAMA])
def test_openais_headers_tell_durations(dialect: Dialect) -> None:
    assert rate_headers(dialect, BOTH, 0.0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "20000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m3s",
    }


def test_anthropics_headers_tell_times() -> None:
    assert rate_headers(Dialect.ANTHROPIC, BOTH, 1_769_860_799.5) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2026-01-31T12:00:01Z",
        "anthropic-ratelimit-tokens-limit": "20000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2026-01-31T12:01:03Z",
    }


@pytest.mark.parametrize("dialect", list(Dialect))
def test_limits_that_there_are_not_have_no_headers(dialect: Dialect) -> None:
    names = rate_headers(dialect, UsageView(0, 0, 0, 0, Level(1, 1, 0.0), None), 0.0)
    assert len(names) == 3
    assert not any("tokens" in name for name in names)
    assert rate_headers(dialect, UsageView(0, 0, 0, 0, None, None), 0.0) == {}


@pytest.mark.parametrize("dialect", list(Dialect))
def test_pages_of_allowed_sites_may_read_them(dialect: Dialect) -> None:
    told = Cors(("https://site.example",)).headers("https://site.example")
    exposed = told["Access-Control-Expose-Headers"].split(", ")
    assert rate_headers(dialect, BOTH, 0.0).keys() <= set(exposed)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0121, "13ms"),
        (0.9999, "1s"),
        (8.64, "8.64s"),
        (60.0, "1m0s"),
        (63.0, "1m3s"),
        (86.4, "1m26.4s"),
        (360.0, "6m0s"),
        (3723.0, "1h2m3s"),
        (3600.0, "1h0m0s"),
    ],
)
def test_a_duration_looks_like_openais(seconds: float, text: str) -> None:
    assert duration(seconds) == text
