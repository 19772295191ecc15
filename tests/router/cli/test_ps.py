"""`corral ps` shows what the server tells: what works first, dashes for what is not known, as wide as there is room."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from router.cli import ps_view
from router.cli.picture import Picture
from router.cli.ps import change_line
from router.cli.server import Event
from tests.fakes.corral_http import FakeCorral, as_events, refusal
from tests.router.cli.conftest import Corral
from tests.router.cli.statuses import busy_slot, model, status
from tests.support.terminals import terminal


def plain(told: dict[str, Any], *, all_models: bool = False) -> list[str]:
    return ps_view.plain_lines(Picture.of(told), url="http://host", now=7200.0, all_models=all_models)


def screen(told: dict[str, Any], width: int, height: int | None = None, **more: Any) -> list[str]:
    terminal = Console(file=io.StringIO(), width=width, height=height or 50, force_terminal=True, color_system=None)
    options: dict[str, Any] = {"url": "http://host", "now": 7200.0, "all_models": False, "height": height} | more
    terminal.print(ps_view.compose(Picture.of(told), terminal, **options))
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_everything_is_told_in_plain_text(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/status", status())
    done = corral("ps")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1:] == plain(status())[1:]
    lines = [" ".join(line.split()) for line in plain(status())]
    assert lines == [
        "Corral 9.9.9 at http://host · up 2 h · 1 of 4 models loaded · 1 waiting",
        "bad: it is not a GGUF file; a request tries again in 4 min",
        "",
        "MODEL STATE DEVICE SLOTS QUEUE TOKENS/S PROMPT/S MEMORY UNLOADS IN",
        "chat ready CUDA0, CPU 1/2 1 45.1 0 1.3 GB in use",
        "coder downloading 42 % - - 0 - - needs 2.0 GB -",
        "bad failed - - 0 - - - -",
        "idle unloaded - - 0 - - - -",
        "",
        "MODEL SLOT DOES PROMPT CACHED ANSWER TOKENS/S SINCE REQUEST",
        "chat 0 generating 120 100 45 45.1 3 s abc123",
        "",
        "WAITS MODEL PRIORITY KEY FOR REQUEST",
        "12 s chat 0 - a free place on 'chat' r1",
        "",
        "DEVICE NAME MODELS OTHERS ROOM OF",
        "CUDA0 Card [2] 6.0 GB - - 24.0 GB",
    ]


def test_json_is_what_the_server_says(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/status", status())
    assert json.loads(corral("ps", "--json").stdout) == status()


def test_columns_of_plain_text_are_lined_up() -> None:
    head, *rows = plain(status())[3:8]
    place = head.index("STATE")
    assert [row[place:].split()[0] for row in rows[:4]] == ["ready", "downloading", "failed", "unloaded"]


@pytest.mark.parametrize("width", [60, 72, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_every_model_is_there(width: int) -> None:
    lines = screen(status(), width)
    assert max(map(len, lines)) <= width
    for name in ("chat", "coder", "bad", "idle"):
        assert any(line.startswith(name) for line in lines)
    head = next(line for line in lines if line.startswith("MODEL"))
    assert ("PROMPT/S" in head) == (width >= 120)
    assert "STATE" in head
    assert "SLOTS" in head


def test_what_is_not_known_is_a_dash_on_a_terminal() -> None:
    device = next(line for line in screen(status(), 120) if line.startswith("CUDA0"))
    assert device.split()[:7] == ["CUDA0", "Card", "[2]", "6.0", "GB", "–", "–"]


def test_the_bar_of_a_device_shows_models_others_and_what_is_free() -> None:
    device = status()["devices"][0] | {"used_by_others_bytes": 12 * 10**9}
    line = next(line for line in screen(status(devices=[device]), 120) if line.startswith("CUDA0"))
    assert line.endswith("█" * 6 + "▓" * 12 + "░" * 6)


@pytest.mark.parametrize("height", [8, 12, 16, 24, 40])
def test_no_more_lines_than_the_terminal_has_and_what_is_left_out_is_said(height: int) -> None:
    many = [model(f"m{at}") for at in range(30)]
    slots = [busy_slot("m0", at) for at in range(20)]
    lines = screen(status(models=many, slots=slots), 100, height)
    assert len(lines) <= height
    assert any("more" in line for line in lines)


def test_models_at_rest_are_counted_where_there_are_many() -> None:
    many = [model(f"m{at}", "unloaded") for at in range(30)] + [model("live"), model("broken", "failed")]
    lines = plain(status(models=many))
    assert "and 30 models at rest: --all shows them" in lines
    assert any(line.startswith("live") for line in lines)
    assert any(line.startswith("broken") for line in lines)
    assert not any(line.startswith("m0") for line in lines)
    assert any(line.startswith("m29") for line in plain(status(models=many), all_models=True))


def test_requests_that_are_next_on_a_full_worker_are_counted() -> None:
    one = model("chat", running_requests=4)
    lines = plain(status(models=[one], slots=[busy_slot("chat", 0), busy_slot("chat", 1)]))
    assert "2/2 +2" in "\n".join(lines)


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"is_pinned": True}, "pinned"),
        ({"running_requests": 1}, "in use"),
        ({"idle_unload_in_s": 600}, "10 min"),
        ({}, "-"),
    ],
)
def test_when_a_model_goes_is_told(more: dict[str, Any], shown: str) -> None:
    (row,) = [line for line in plain(status(models=[model("chat", **more)], slots=[])) if line.startswith("chat")]
    assert row.endswith(f"  {shown}")


def test_slots_of_several_workers_are_told_apart() -> None:
    lines = plain(status(slots=[busy_slot("chat", 0), busy_slot("chat", 0, replica=1)]))
    assert [line.split()[1] for line in lines if line.startswith("chat ")][1:] == ["0.0", "1.0"]


def test_a_refused_configuration_and_a_stopping_server_are_the_first_to_be_told() -> None:
    configuration = {"error": "models.yaml:3:1: wrong", "since": 7140}
    server = status()["server"] | {"status": "draining", "configuration": configuration}
    lines = plain(status(server=server))
    assert lines[1] == "the server is draining: it takes no new requests"
    assert (
        lines[2] == "the configuration is invalid since 60 s ago; the one before stays in force: models.yaml:3:1: wrong"
    )


def test_texts_of_a_server_move_no_cursor_and_are_no_markup() -> None:
    nasty = model("x[red]\x1b[2J", "failed", reason="[bold]no[/bold]\x1b]0;title\x07")
    for lines in (plain(status(models=[nasty])), screen(status(models=[nasty]), 120)):
        text = "\n".join(lines)
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "x[red]" in text
        assert "[bold]no[/bold]" in text


def test_a_server_that_leaves_things_out_is_shown_with_what_it_tells() -> None:
    lines = plain({"models": [{"id": "a"}], "slots": [{"is_processing": True}], "devices": [{}], "queue": None})
    assert any(line.startswith("a") for line in lines)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (refusal(404, "no such route", "not_found"), 1, "older than this command"),
        (refusal(501, "later", "not_available_yet"), 1, "older than this command"),
        (refusal(401, "", "invalid_api_key"), 4, "CORRAL_API_KEY"),
        (refusal(403, "this key may not look", "forbidden"), 4, "may not look"),
    ],
)
def test_a_server_that_does_not_tell_is_answered_with_what_to_do(
    fake: FakeCorral, corral: Corral, answer: Any, code: int, words: str
) -> None:
    fake.answers("GET", "/status", answer)
    done = corral("ps")
    assert done.exit_code == code
    assert words in done.stderr


@pytest.mark.parametrize(("env", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_is_given_colours_unless_somebody_wants_none(
    fake: FakeCorral, env: dict[str, str], is_coloured: bool
) -> None:
    fake.answers("GET", "/status", status())
    with terminal("ps", env=env) as shown:
        assert shown.end() == 0
    assert (b"\x1b[32mready" in shown.seen) is is_coloured
    assert (b"\x1b[3" in shown.seen) is is_coloured


# --- following, without a terminal ------------------------------------------------------------------------


def test_watching_without_a_terminal_prints_a_line_for_each_change_of_a_model(fake: FakeCorral, corral: Corral) -> None:
    loading = model("a", "loading", progress={"phase": "loading", "fraction": 0.5})
    fake.answers(
        "GET",
        "/events",
        as_events(
            ("server", {}),
            ("model", model("a", "unloaded")),
            ("model", loading),
            ("model", loading | {"queue_length": 3}),
            ("slots", []),
            ("model", model("a", "failed", reason="why")),
            ("model_removed", {"model": "a"}),
        ),
    )
    done = corral("ps", "--watch")
    told = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    assert told == ["a unloaded", "a loading 50 %", "a failed why", "a removed"]
    assert done.exit_code == 3
    assert "ended the stream" in done.stderr
    assert fake.asked[0].query == {"topics": "server,models,slots,devices,queue"}


def test_watching_as_json_passes_every_event_on(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/events", as_events(("server", {"a": 1}), ("slots", [])))
    lines = corral("ps", "--watch", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "server", "data": {"a": 1}},
        {"event": "slots", "data": []},
    ]


def test_a_server_without_topics_is_an_older_one(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/events", refusal(400, "`topics` is not an option here", "invalid_request_error"))
    done = corral("ps", "--watch")
    assert done.exit_code == 1
    assert "older than this command" in done.stderr


def test_a_change_that_is_none_has_no_line() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    line = change_line(None, Event("model", model("a")), at)
    assert line == "2026-01-02T03:04:05+00:00 a ready"
    assert change_line("a ready", Event("model", model("a", queue_length=2)), at) is None


def test_a_model_whose_own_name_may_not_be_used_is_shown_under_one_that_may() -> None:
    told = status()
    told["models"][0]["usable_as"] = "alias-of-it"
    assert any(line.startswith("alias-of-it") for line in plain(told, all_models=True))
