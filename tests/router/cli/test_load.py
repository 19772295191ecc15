"""`corral load`, `unload`, `pin` and `unpin` say what became of each model, and wait until it has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.cli.model_wait import Length, doing, load_ended, unload_ended
from tests.fakes.corral_http import FakeCorral, refusal
from tests.router.cli.conftest import Corral
from tests.support.terminals import terminal


def entry(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "tiny", "state": state, **more}


def loading(fraction: float | None = None, **more: Any) -> dict[str, Any]:
    return entry("loading", progress={"phase": "loading", "fraction": fraction, **more})


def asked_to_load(fake: FakeCorral, *entries: Any, state: str = "starting") -> None:
    fake.answers("POST", "/models/load", {"success": True, "model": "tiny", "state": state})
    fake.answers("GET", "/v1/models/tiny", *entries)


def test_load_waits_until_the_model_is_ready_and_tells_every_phase_once(fake: FakeCorral, corral: Corral) -> None:
    fetched = {
        "phase": "downloading",
        "fraction": 0.5,
        "done_bytes": 49e6,
        "total_bytes": 98e6,
        "detail": "part 1 of 2",
    }
    asked_to_load(fake, entry("downloading", progress=fetched), loading(0.1), loading(0.9), entry("ready"))
    done = corral("load", "tiny")
    assert done.exit_code == 0
    assert done.stdout.startswith("tiny: ready after ")
    assert done.stderr.splitlines() == ["tiny: downloading part 1 of 2", "tiny: loading"]
    assert fake.bodies("POST", "/models/load") == [{"model": "tiny"}]


def test_load_of_a_loaded_model_says_that_it_is(fake: FakeCorral, corral: Corral) -> None:
    asked_to_load(fake, entry("ready"), state="ready")
    assert corral("load", "tiny").stdout == "tiny: ready already\n"


def test_load_that_fails_ends_with_the_servers_reason_and_where_to_look(fake: FakeCorral, corral: Corral) -> None:
    last_exit = {"reason": "no_memory", "ago_s": 0.1}
    asked_to_load(fake, loading(), entry("backoff", reason="not enough memory for 'tiny'", last_exit=last_exit))
    done = corral("load", "tiny")
    assert done.exit_code == 1
    assert "corral: tiny: not enough memory for 'tiny'\n" in done.stderr
    assert "`corral logs tiny`" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("last_exit", [None, {"reason": "source_failed", "ago_s": 0.1}])
def test_load_that_started_no_worker_points_at_no_log(fake: FakeCorral, corral: Corral, last_exit: Any) -> None:
    reason = "no such file. Put it right, then POST /models/load"
    asked_to_load(fake, entry("unavailable", reason=reason, last_exit=last_exit))
    done = corral("load", "tiny")
    assert done.exit_code == 1
    assert done.stderr == "corral: tiny: no such file. Put it right, then `corral load`\n"


def test_load_of_one_model_and_an_unknown_name_tells_the_name_with_its_code(fake: FakeCorral, corral: Corral) -> None:
    asked_to_load(fake, entry("ready"))
    unknown = "there is no model named 'x'; GET /v1/models lists them all."
    fake.answers("POST", "/models/load", {"model": "tiny", "state": "ready"}, refusal(404, unknown, "model_not_found"))
    done = corral("load", "tiny", "x")
    assert done.exit_code == 5
    assert done.stdout == "tiny: ready already\n"
    assert "`corral ps --all` lists them all" in done.stderr


def test_the_bar_of_a_load_never_goes_back_while_the_file_comes() -> None:
    def fetch(phase: str, done: float, of: float | None, detail: str) -> Any:
        share = None if of is None else done / of
        return entry(
            "downloading",
            progress={"phase": phase, "fraction": share, "done_bytes": done, "total_bytes": of, "detail": detail},
        )

    looks = [
        fetch("downloading", 0, None, ""),
        fetch("downloading", 1e6, 2e6, "part 1 of 2"),
        fetch("joining", 2e6, 2e6, "part 1 of 2"),
        fetch("downloading", 0, None, "part 2 of 2"),
        fetch("joining", 2e6, 2e6, "part 2 of 2"),
        fetch("verifying", 1e6, 4e6, "model.gguf"),
        loading(0.25),
    ]
    length = Length()
    assert [length.of(doing(look)) for look in looks] == [None, 0.25, 0.5, 0.5, 1.0, 1.0, 0.25]


def test_load_of_several_models_tells_of_each_and_fails_if_one_does(fake: FakeCorral, corral: Corral) -> None:
    asked_to_load(fake, entry("ready"))
    fake.answers("GET", "/v1/models/org/big:x", {**entry("failed", reason="no GGUF file"), "id": "org/big:x"})
    done = corral("load", "tiny", "org/big:x", "tiny")
    assert done.exit_code == 1
    assert done.stdout.startswith("tiny: ready")
    assert "corral: org/big:x: no GGUF file" in done.stderr
    assert len(fake.bodies("POST", "/models/load")) == 2


def test_load_without_waiting_ends_at_once(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/models/load", {"success": True, "model": "tiny", "state": "loading"})
    done = corral("load", "tiny", "--no-wait")
    assert (done.exit_code, done.stdout) == (0, "tiny: loading\n")
    assert [one.path for one in fake.asked] == ["/models/load"]


def test_load_prints_json_for_programs(fake: FakeCorral, corral: Corral) -> None:
    asked_to_load(fake, entry("failed", reason="broken"))
    done = corral("load", "tiny", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == [{"model": "tiny", "success": False, "result": "broken"}]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refusal(404, "there is no model named 'tiny'", "model_not_found"), 5),
        (refusal(403, "needs the scope admin", "forbidden"), 4),
        (refusal(401, "", "invalid_api_key"), 4),
        (refusal(507, "'tiny' fits on no device", "model_too_large"), 1),
    ],
)
def test_a_refusal_ends_with_the_code_of_its_kind(fake: FakeCorral, corral: Corral, answer: Any, code: int) -> None:
    fake.answers("POST", "/models/load", answer)
    done = corral("load", "tiny")
    assert done.exit_code == code
    assert done.stderr.startswith("corral: ")
    assert "Traceback" not in done.stderr


def test_interrupted_load_says_that_it_goes_on(
    fake: FakeCorral, corral: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    asked_to_load(fake, loading())
    monkeypatch.setattr("router.cli.model_wait.time.sleep", interrupt)
    done = corral("load", "tiny")
    assert done.exit_code == 130
    assert "the server still loads tiny" in done.stderr


def test_a_load_that_waits_for_room_says_for_what(fake: FakeCorral, corral: Corral) -> None:
    asked_to_load(fake, entry("unloaded"), entry("unloaded"), entry("ready"), state="unloaded")
    fake.answers("GET", "/health", {"waiting_for": "memory: 1 GB more"})
    done = corral("load", "tiny")
    assert done.exit_code == 0
    assert done.stderr == "tiny: waits for memory: 1 GB more\n"


def test_a_load_that_the_server_gave_up_is_a_failure_after_two_looks(fake: FakeCorral, corral: Corral) -> None:
    asked_to_load(fake, entry("unloaded"), state="unloaded")
    fake.answers("GET", "/health", {})
    done = corral("load", "tiny")
    assert done.exit_code == 1
    assert "given the load up" in done.stderr
    assert sum(one.path == "/v1/models/tiny" for one in fake.asked) == 2


def test_a_crash_while_loading_is_told_in_its_own_words_and_an_old_one_is_not() -> None:
    crash = {"reason": "crashed", "detail": "killed by SIGSEGV", "ago_s": 0.3}
    ended = load_ended(entry("unloaded", last_exit=crash), None, elapsed_s=1.0)
    assert ended is not None
    assert ended.text == "killed by SIGSEGV"
    old = load_ended(entry("unloaded", last_exit=crash | {"ago_s": 60.0}), None, elapsed_s=1.0)
    assert old is not None
    assert "SIGSEGV" not in old.text
    assert load_ended(entry("unloaded", last_exit=crash), "memory", elapsed_s=1.0) is None, "it is tried again"


def test_what_keeps_a_model_is_told_in_words() -> None:
    running = [{"running_requests": 2}, {"running_requests": 1}]
    assert doing(entry("draining", workers=running)).text == "draining, 3 requests still running"
    assert doing(entry("stopping", workers=[])).text == "stopping"
    assert doing(loading(0.42)).text == "loading, 42 %"
    assert doing(
        entry("downloading", progress={"phase": "downloading", "done_bytes": 5e6, "total_bytes": None})
    ).text == ("downloading, 5 MB")


def test_unload_waits_for_running_requests(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/models/unload", {"success": True, "model": "tiny", "state": "draining"})
    busy = entry("draining", workers=[{"state": "draining", "running_requests": 1}])
    fake.answers("GET", "/v1/models/tiny", busy, entry("stopping", workers=[{"state": "stopping"}]), entry("unloaded"))
    fake.answers("GET", "/health", {})
    done = corral("unload", "tiny")
    assert done.exit_code == 0
    assert done.stdout.startswith("tiny: unloaded after ")
    assert done.stderr.splitlines() == ["tiny: draining", "tiny: stopping"]


def test_a_model_that_somebody_asked_for_meanwhile_counts_as_unloaded_and_loading() -> None:
    again = unload_ended(entry("loading", workers=[{"state": "loading"}]))
    assert again is not None
    assert again.text == "unloaded, and loading again for a request that came after"
    assert unload_ended(entry("ready", workers=[{"state": "ready"}, {"state": "draining"}])) is None


def test_unload_all_takes_every_model_with_a_worker(fake: FakeCorral, corral: Corral) -> None:
    workers = [{"state": "ready"}]
    models = [
        {"id": "tiny", "parent": None, "workers": workers},
        {"id": "alias", "parent": "tiny", "workers": workers},
        {"id": "other", "parent": None},
    ]
    fake.answers("GET", "/v1/models", {"data": models})
    fake.answers("POST", "/models/unload", {"success": True, "model": "tiny", "state": "draining"})
    assert corral("unload", "--all", "--no-wait").exit_code == 0
    assert fake.bodies("POST", "/models/unload") == [{"model": "tiny"}]


def test_unload_all_of_nothing_is_fine(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("GET", "/v1/models", {"data": []})
    assert corral("unload", "--all").stdout == "no model is loaded\n"
    assert json.loads(corral("unload", "--all", "--json").stdout) == []


@pytest.mark.parametrize("arguments", [("unload",), ("unload", "tiny", "--all"), ("load",)])
def test_models_or_all_of_them_must_be_named(corral: Corral, arguments: tuple[str, ...]) -> None:
    assert corral(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sent", "told"),
    [
        (("pin", "tiny"), True, "tiny: pinned until the server stops"),
        (("unpin", "tiny"), False, "tiny: not pinned, until the server stops"),
        (("unpin", "tiny", "--as-configured"), None, "tiny: not pinned, as its configuration says"),
    ],
)
def test_pins_are_ordered_and_told(
    fake: FakeCorral, corral: Corral, arguments: tuple[str, ...], sent: bool | None, told: str
) -> None:
    fake.answers("POST", "/admin/pin", {"success": True, "model": "tiny", "is_pinned": bool(sent), "pin_source": None})
    done = corral(*arguments)
    assert done.exit_code == 0
    assert done.stdout.startswith(told)
    assert fake.bodies("POST", "/admin/pin") == [{"model": "tiny", "pin": sent}]


def test_a_server_that_cannot_pin_is_older(corral: Corral) -> None:
    done = corral("pin", "tiny")
    assert done.exit_code == 1
    assert "older than this command" in done.stderr


def test_names_of_a_server_give_the_terminal_no_orders(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/models/load", refusal(404, "no model '\x1b[2J[red]'", "model_not_found"))
    done = corral("load", "x")
    assert "\x1b" not in done.output
    assert "[red]" in done.output


def test_a_terminal_shows_a_bar_that_is_gone_at_the_end(fake: FakeCorral) -> None:
    fetched = {"phase": "downloading", "fraction": 0.5, "done_bytes": 49e6, "total_bytes": 98e6, "detail": ""}
    asked_to_load(fake, *[entry("downloading", progress=fetched)] * 3, entry("ready"))
    with terminal("load", "tiny") as shown:
        shown.wait_for("downloading, 49 MB of 98 MB")
        place = shown.wait_for("tiny: ready after")
        assert shown.end() == 0
        assert "━".encode() in shown.seen[:place]
        assert "━".encode() not in shown.seen[place:]


def test_a_server_that_tells_no_state_is_believed_all_the_same(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/models/load", {"success": True})
    done = corral("load", "a", "--no-wait")
    assert (done.exit_code, done.stdout) == (0, "a: asked for\n")
