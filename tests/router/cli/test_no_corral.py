"""Whatever answers in place of a Corral, commands say that it is none, and end; nothing is shown as if it were one's.

Of a Corral, only what commands cannot do without is expected: what an older or a newer one tells passes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.cli.output import ExitCode
from router.cli.shapes import CHUNK, MODEL, STATUS, fits
from router.cli.stream_lines import split_lines
from tests.fakes.corral_http import FakeCorral, Reply, as_events, said
from tests.router.cli.conftest import Corral

COMMANDS = (
    ("ps",),
    ("ps", "--json"),
    ("load", "m"),
    ("unload", "m"),
    ("unload", "--all"),
    ("pin", "m"),
    ("reload",),
    ("chat", "m", "hi"),
    ("chat", "--json", "m", "hi"),
    ("bench", "m"),
)
PATHS = {
    "GET": ("/status", "/v1/models", "/v1/models/m", "/health"),
    "POST": ("/models/load", "/models/unload", "/admin/pin", "/admin/reload"),
}
ANSWERS = {
    "null": b"null",
    "list": b"[1, 2]",
    "number": b"5",
    "text": b'"x"',
    "deep": b"[" * 100_000,
    "long number": b"9" * 5000,
    "no text": b"\xff\xfe\0",
    "wrong types": json.dumps({"server": 5, "models": {}, "data": 7, "id": 5, "state": 7, "model": []}).encode(),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_answer_of_somebody_else_is_told(
    fake: FakeCorral, corral: Corral, command: tuple[str, ...], answer: str
) -> None:
    for method, paths in PATHS.items():
        for path in paths:
            fake.answers(method, path, Reply(200, [ANSWERS[answer]]))
    done = corral(*command)
    assert done.exit_code == ExitCode.NO_SERVER, done.output
    assert f"what answers at {fake.url} is no Corral" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", [("load", "m"), ("unload", "m"), ("chat", "m", "hi"), ("ps",)], ids=" ".join)
def test_an_empty_answer_is_not_waited_on(fake: FakeCorral, corral: Corral, command: tuple[str, ...]) -> None:
    for method, paths in PATHS.items():
        for path in paths:
            fake.answers(method, path, {})
    assert corral(*command).exit_code == ExitCode.NO_SERVER


@pytest.mark.parametrize(
    "event", [("model", 5), ("server", []), ("devices", 7), ("queue", None), ("slots", {}), ("model_removed", {})]
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_events_of_somebody_else_are_told(
    fake: FakeCorral, corral: Corral, event: tuple[str, Any], options: tuple[str, ...]
) -> None:
    fake.answers("GET", "/events", as_events(event))
    done = corral("ps", "--watch", *options)
    assert done.exit_code == ExitCode.NO_SERVER
    assert "no Corral" in done.stderr


@pytest.mark.parametrize("text", ["one\u2028two", "one\x85two", "one\x0btwo", "one\x1etwo", "one\rtwo"])
def test_what_unicode_takes_for_an_end_of_line_ends_no_event(fake: FakeCorral, corral: Corral, text: str) -> None:
    fake.answers("GET", "/v1/models/m", {"id": "m", "state": "ready"})
    chunk = json.dumps(said(text, finish="stop"), ensure_ascii=False).encode()
    pieces = [bytes([byte]) for byte in b"data: " + chunk + b"\r\n\r\ndata: [DONE]\r\n\r\n"]
    fake.answers("POST", "/v1/chat/completions", Reply(200, pieces, "text/event-stream"))
    done = corral("chat", "m", "hi")
    assert done.exit_code == ExitCode.OK, done.stderr
    assert done.stdout.startswith("one")
    assert done.stdout.endswith("two\n")


def test_a_change_with_an_odd_end_of_line_in_it_is_followed(fake: FakeCorral, corral: Corral) -> None:
    model = json.dumps({"id": "m", "state": "ready", "description": "x\u2028y"}, ensure_ascii=False).encode()
    fake.answers("GET", "/events", Reply(200, [b"event: model\ndata: " + model + b"\n\n"], "text/event-stream"))
    assert " m ready" in corral("ps", "--watch").stdout


def test_lines_end_where_the_server_ends_them() -> None:
    assert list(split_lines([b"a\r", b"\nb\n\n", "ü\u2028".encode()[:1], "ü\u2028".encode()[1:], b"\x85\xff"])) == [
        "a",
        "b",
        "",
        "ü\u2028\ufffd\ufffd",
    ]
    assert list(split_lines([])) == []
    assert list(split_lines([b"a\n", b"b"])) == ["a", "b"]


def test_parts_of_an_answer_that_are_none_break_it_off(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/v1/models/m", {"id": "m", "state": "ready"})
    for chunk in ({"choices": 5}, {"choices": [5]}, {"choices": [{"delta": {"content": 7}}]}, {"usage": 7}):
        body = f"data: {json.dumps(chunk)}\n\n".encode()
        fake.answers("POST", "/v1/chat/completions", Reply(200, [body], "text/event-stream"))
        done = corral("chat", "m", "hi")
        assert done.exit_code == ExitCode.FAILED
        assert "no part of one" in done.stderr


def test_what_a_newer_or_an_older_server_tells_passes() -> None:
    assert fits({"server": {}, "models": [{"id": "m"}], "new": 1}, STATUS)
    assert fits({"id": "m", "state": "new", "workers": None, "more": {}}, MODEL)
    assert fits({"choices": [{"delta": {"content": None}, "finish_reason": None}], "usage": None}, CHUNK)
    assert not fits({"id": True, "state": "ready"}, MODEL)
    assert not fits({"server": {"started_at": True}, "models": []}, STATUS)


def test_json_gives_a_terminal_no_orders_and_says_the_same(fake: FakeCorral, corral: Corral) -> None:
    name = "\x1b[31m\u202e\x9b\x7f\ud800ü🙂 x"
    status: dict[str, Any] = {"server": {"version": name}, "models": [{"id": name, "state": "ready"}]}
    fake.answers("GET", "/status", status)
    fake.answers("GET", "/events", as_events(("model", status["models"][0])))
    for command in (("ps", "--json"), ("ps", "--watch", "--json")):
        shown = corral(*command).stdout
        assert shown.replace("\n", "").isprintable()
        assert "ü🙂" in shown
        assert json.loads(shown.splitlines()[0]) in (status, {"event": "model", "data": status["models"][0]})
    fake.answers("GET", "/admin/logs", Reply(200, ["a\u202e\x9bb\u2028c\n".encode()], "text/plain"))
    shown = corral("logs", "--json").stdout
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == {"model": None, "line": "a\u202e\x9bb\u2028c"}
