"""`corral ps --watch` on a terminal: one stream of events, a picture that ages, a screen that is given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from router.cli.picture import Picture
from router.cli.server import Event
from tests.fakes.corral_http import FakeCorral, Reply, as_events
from tests.router.cli.statuses import busy_slot, model, status
from tests.support.terminals import terminal

ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


def first_events(**parts: object) -> list[tuple[str, object]]:
    told = status(**parts)
    models = [("model", one) for one in told["models"]]
    return [
        ("server", told["server"]),
        ("devices", told["devices"]),
        *models,
        ("slots", told["slots"]),
        ("queue", told["queue"]),
    ]


# --- the picture ------------------------------------------------------------------------------------------


def test_events_make_the_same_picture_as_the_status() -> None:
    picture, whole = Picture(), Picture.of(status())
    for name, data in first_events():
        assert not picture.is_whole
        assert picture.apply(Event(name, data))
    assert picture.is_whole
    assert picture.models == whole.models
    assert (picture.server, picture.slots, picture.devices) == (whole.server, whole.slots, whole.devices)
    assert picture.waiting == whole.waiting


def test_models_come_and_go() -> None:
    picture = Picture()
    picture.apply(Event("model", model("a", "unloaded")))
    picture.apply(Event("model", model("b")))
    picture.apply(Event("model", model("a", "loading")))
    assert [(one["id"], one["state"]) for one in picture.models] == [("a", "loading"), ("b", "ready")]
    picture.apply(Event("model_removed", {"model": "a"}))
    assert [one["id"] for one in picture.models] == ["b"]
    assert not picture.apply(Event("request", {}))


def test_times_go_on_between_two_events() -> None:
    picture = Picture()
    for name, data in first_events(models=[model("a", idle_unload_in_s=30), model("b", "backoff", retry_in_s=2)]):
        picture.apply(Event(name, data))
    aged = picture.aged(time.monotonic() + 10)
    by_name = {one["id"]: one for one in aged.models}
    assert by_name["a"]["idle_unload_in_s"] == pytest.approx(20, abs=1)
    assert by_name["b"]["retry_in_s"] == 0
    assert aged.busy_slots[0]["age_s"] == pytest.approx(13.2, abs=1)
    assert aged.waiting[0]["waits_s"] == pytest.approx(22, abs=1)
    assert busy_slot("a", 0)["age_s"] == 3.2


# --- the screen, on a real terminal -----------------------------------------------------------------------


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)])
def test_the_screen_is_given_back_as_it_was(fake: FakeCorral, hold: threading.Event, key: bytes, code: int) -> None:
    fake.answers("GET", "/events", as_events(*first_events(), hold=hold))
    with terminal("ps", "--watch") as shown:
        shown.wait_for("q quits")
        assert ALTERNATE in shown.seen
        shown.press(key)
        assert shown.end() == code
        assert shown.seen.rindex(BACK) > shown.seen.rindex(ALTERNATE)
        assert shown.seen.rindex(b"\x1b[?25h") > shown.seen.rindex(b"\x1b[?25l"), "the cursor is there again"
        assert b"Traceback" not in shown.seen


@pytest.mark.slow
def test_the_screen_follows_the_size_of_the_terminal(fake: FakeCorral, hold: threading.Event) -> None:
    fake.answers("GET", "/events", as_events(*first_events(), hold=hold))
    with terminal("ps", "--watch", columns=150) as shown:
        place = shown.wait_for("PROMPT/S")
        shown.resize(70, 30)
        place = shown.wait_for("DEVICE", since=place)
        place = shown.wait_for("q quits", since=place)
        shown.wait_for("q quits", since=place)
        assert b"PROMPT/S" not in shown.seen[place:]


@pytest.mark.slow
def test_a_server_that_goes_away_is_told_and_found_again(fake: FakeCorral, hold: threading.Event) -> None:
    again = first_events(models=[model("after-the-restart")])
    fake.answers("GET", "/events", as_events(*first_events()), as_events(*again, hold=hold))
    with terminal("ps", "--watch") as shown:
        shown.wait_for("no connection for")
        place = shown.wait_for("after-the-restart")
        place = shown.wait_for("q quits", since=place)
        shown.wait_for("q quits", since=place)
        assert b"no connection" not in shown.seen[place:]
        assert sum(one.path == "/events" for one in fake.asked) == 2


@pytest.mark.slow
def test_a_proxy_that_finds_no_server_for_a_while_is_waited_for(fake: FakeCorral, hold: threading.Event) -> None:
    away = Reply(502, [b"<html>Bad Gateway</html>"], "text/html")
    again = first_events(models=[model("after-the-restart")])
    fake.answers("GET", "/events", as_events(*first_events()), away, as_events(*again, hold=hold))
    with terminal("ps", "--watch") as shown:
        shown.wait_for("status 502")
        shown.wait_for("after-the-restart")


def test_nobody_there_from_the_first_is_told_without_a_screen() -> None:
    with terminal("ps", "--watch", "--url", "http://127.0.0.1:1") as shown:
        assert shown.end() == 3
        assert b"no server answers" in shown.seen
        assert ALTERNATE not in shown.seen
