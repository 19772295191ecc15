"""`corral logs` prints lines as they are, safely, and goes on with -f."""

from __future__ import annotations

import json

import pytest

from tests.fakes.corral_http import FakeCorral, Reply, as_text, refusal
from tests.router.cli.conftest import Corral


def test_lines_are_printed_without_orders_to_the_terminal(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/admin/logs", as_text("first [bold]\nsecond \x1b[31mred\n"))
    done = corral("logs")
    assert (done.exit_code, done.stdout) == (0, "first [bold]\nsecond \\x1b[31mred\n")
    assert fake.asked[0].query == {}


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        (("logs", "org/tiny:x"), {"model": "org/tiny:x"}),
        (("logs", "-n", "5"), {"lines": "5"}),
        (("logs", "tiny", "-f"), {"model": "tiny", "lines": "20", "follow": "true"}),
        (("logs", "-f", "-n", "0"), {"lines": "0", "follow": "true"}),
    ],
)
def test_what_is_wanted_is_asked_for(
    fake: FakeCorral, corral: Corral, arguments: tuple[str, ...], query: dict[str, str]
) -> None:
    fake.answers("GET", "/admin/logs", as_text("x\n"))
    corral(*arguments)
    assert fake.asked[0].query == query


def test_each_line_is_an_object_for_programs(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/admin/logs", as_text("a\nb\n"))
    lines = corral("logs", "tiny", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"model": "tiny", "line": "a"}, {"model": "tiny", "line": "b"}]


def test_a_line_that_the_server_logs_as_json_is_given_as_it_is(fake: FakeCorral, corral: Corral) -> None:
    logged = {"level": "info", "message": "listening"}
    fake.answers("GET", "/admin/logs", as_text(f"{json.dumps(logged)}\n{{broken\n[1]\n"))
    lines = [json.loads(line) for line in corral("logs", "--json").stdout.splitlines()]
    assert lines == [logged, {"model": None, "line": "{broken"}, {"model": None, "line": "[1]"}]


def test_a_followed_log_that_ends_is_a_server_that_stops(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/admin/logs", as_text("last words\n"))
    done = corral("logs", "-f")
    assert done.exit_code == 3
    assert done.stdout == "last words\n"
    assert "has ended the log" in done.stderr


def test_an_empty_log_says_that_it_is(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/admin/logs", as_text(""))
    done = corral("logs", "tiny")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no worker of tiny has printed anything" in done.stderr


def test_unknown_models_and_keys_without_the_scope_have_their_codes(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/admin/logs", refusal(404, "no model", "model_not_found"), refusal(403, "no", "forbidden"))
    assert [corral("logs", "x").exit_code, corral("logs").exit_code] == [5, 4]


def test_ctrl_c_ends_quietly(fake: FakeCorral, corral: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_text: str) -> None:
        raise KeyboardInterrupt

    fake.answers("GET", "/admin/logs", as_text("x\n"))
    monkeypatch.setattr("router.cli.logs.say", interrupt)
    done = corral("logs", "-f")
    assert (done.exit_code, done.output) == (130, "")


def test_a_page_of_somebody_elses_is_no_log(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/admin/logs", Reply(200, [b"<html>"], "text/html"))
    done = corral("logs")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "something else than text" in done.stderr
