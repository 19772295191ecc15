"""A real `corral serve` with a secret in every place that may hold one: none of them comes out anywhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.served import Served, chat_body, is_running, served

MARK = "zanzibar"
"""In every secret, and in nothing else."""
USER, ADMIN, METRICS = (f"{MARK}-{what}-key" for what in ("user", "admin", "metrics"))
FILED, HASHED, TEAM, GUESS = (f"{MARK}-{what}-key" for what in ("filed", "hashed", "team", "guessed"))
SUM = hashlib.sha256(HASHED.encode()).hexdigest()
ENV = {
    "CORRAL_API_KEYS": USER,
    "CORRAL_ADMIN_KEYS": ADMIN,
    "CORRAL_METRICS_KEYS": METRICS,
    "CORRAL_LOG_LEVEL": "debug",
    "TEAM_KEY": TEAM,
    "FAR_KEY": f"{MARK}-far-key",
    "HF_TOKEN": f"{MARK}-hub-token",
    "OPENAI_API_KEY": f"{MARK}-other-key",
}
TOP: dict[str, Any] = {
    "keys": {
        "team": {"env": "TEAM_KEY", "models": ["small", "pal*"], "max_priority": 3},
        "filed": {"file": "./team.key"},
        "summed": {"sha256": hashlib.sha256(f"{MARK}-summed".encode()).hexdigest()},
    }
}
MODELS: dict[str, dict[str, Any]] = {
    "small": {"fake": {"SECRET": f"{MARK}-of-small"}},
    "other": {},
    "far": {"url": "http://127.0.0.1:9/v1", "url_model": "x", "url_key_env": "FAR_KEY"},
}


def secrets_in(text: str) -> list[str]:
    """Return the places in a text where a secret or a sum of one stands."""
    return [text[max(0, at - 60) : at + 60] for mark in (MARK, SUM) for at in _places(text, mark)]


def _places(text: str, mark: str) -> Iterator[int]:
    at = text.find(mark)
    while at >= 0:
        yield at
        at = text.find(mark, at + 1)


async def ask(server: Served, path: str, key: str | None, body: Any = None, *, bearer: bool = False) -> tuple[int, str]:
    """Return the status and all that came back, headers too."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"} if bearer else {"x-api-key": key}
    method = "GET" if body is None else "POST"
    async with server.session.request(method, server.url + path, json=body, headers=headers) as reply:
        return reply.status, f"{reply.headers}\n{await reply.text()}"


async def test_no_secret_comes_out_anywhere(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# ours\n{FILED}\nsha256:{SUM}\n")
    (tmp_path / "team.key").write_text(f"{MARK}-of-a-file\n")
    env = ENV | {"CORRAL_API_KEY_FILE": str(tmp_path / "keys")}
    async with served(tmp_path, MODELS, env=env, **TOP) as server:
        told: list[str] = []
        for key in (USER, FILED, HASHED, TEAM, f"{MARK}-of-a-file", f"{MARK}-summed"):
            for bearer in (False, True):
                status, text = await ask(server, "/v1/chat/completions", key, chat_body("small"), bearer=bearer)
                assert status == 200, text
                told.append(text)
        assert (await ask(server, "/v1/chat/completions", ADMIN, chat_body("other")))[0] == 200
        await provoke_errors(server, told)
        await provoke_refused_configurations(server, told)
        for path in ("/status", "/requests", "/slots", "/metrics", "/metrics.json", "/admin/logs", "/admin/config"):
            status, text = await ask(server, path, ADMIN)
            assert status == 200 or path == "/admin/config", (path, text)
            told.append(text.replace(f"{MARK}-of-small", ""))  # what a model's `env:` says is its configuration
        told += [(await ask(server, path, USER))[1] for path in ("/health", "/", "/v1/models", "/props")]
        assert [place for text in told for place in secrets_in(text)] == []
        assert secrets_in(str(server.lines)) == []
        assert any(line.get("level", "").lower() == "debug" for line in server.lines), "the log tells all it can"
        check_processes(server)


async def provoke_errors(server: Served, told: list[str]) -> None:
    """Ask for all kinds of things that are refused or fail, with right and wrong keys."""
    chat = "/v1/chat/completions"
    for path, key, body in (
        (chat, None, chat_body("small")),
        (chat, USER, {"model": "none", "messages": []}),
        (chat, USER, {"model": "small", "messages": [], "priority": 7}),
        (chat, TEAM, {"model": "small", "messages": [], "priority": 7}),
        (chat, TEAM, chat_body("other")),
        (chat, USER, chat_body("far")),
        (chat, USER, [1]),
        ("/v1/nothing", USER, {}),
        ("/models/load", USER, {"model": "small"}),
        ("/metrics", USER, None),
        ("/admin/config", METRICS, None),
    ):
        status, text = await ask(server, path, key, body)
        assert status >= 400, (path, body, text)
        told.append(text)
    for text in (f"Bearer  {GUESS}", f"Bearer {GUESS} {GUESS}", f"Basic {GUESS}", GUESS):
        async with server.session.get(server.url + "/v1/models", headers={"Authorization": text}) as reply:
            assert reply.status == 401
            told.append(await reply.text())
    for number in range(9):
        status, text = await ask(server, chat, f"{GUESS}-{number}", chat_body("small"), bearer=number % 2 == 0)
        assert status in (401, 429)
        told.append(text)
    assert (await ask(server, chat, USER, chat_body("small")))[0] == 200, "a right key of the same address"


async def provoke_refused_configurations(server: Served, told: list[str]) -> None:
    """Have configurations read that hold secrets where none may be."""
    path, keys = server.folder / "models.yaml", server.folder / "keys"
    right, right_keys = path.read_text(), keys.read_text()
    for key in (f"{MARK}-plain", {"key": f"{MARK}-plain"}, {"env": f"{MARK}-plain"}, {"sha256": f"{MARK}-plain"}):
        path.write_text(yaml.safe_dump(yaml.safe_load(right) | {"keys": {"bad": key}}))
        status, text = await ask(server, "/admin/reload", ADMIN, {})
        assert status == 422
        told += [text, (await ask(server, "/status", ADMIN))[1], (await ask(server, "/health", None))[1]]
    path.write_text(right)
    keys.write_text(f"{FILED}\nsha256:{MARK}-no-sum\n")
    status, text = await ask(server, "/admin/reload", ADMIN, {})
    assert status == 422
    assert "line 2 of" in text
    told.append(text)
    keys.write_text(right_keys)
    assert (await ask(server, "/admin/reload", ADMIN, {}))[0] == 200


def check_processes(server: Served) -> None:
    """No process has a secret among its arguments, and none but the router in its environment.

    What a model's `env:` says is in that of its own worker.
    """
    router = psutil.Process(server.process.pid)
    children = [one for one in router.children(recursive=True) if is_running(one.pid)]
    assert len({entry["pid"] for entry in server.journal("started")} & {one.pid for one in children}) == 2
    for process in (router, *children):
        assert secrets_in(Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace")) == []
    held = [secrets_in(Path(f"/proc/{one.pid}/environ").read_text(errors="replace")) for one in children]
    (own,) = (places for places in held if places)
    assert len(own) == 1
    assert f"FAKE_SECRET={MARK}-of-small" in own[0]


async def test_withdrawn_keys_and_rights_hold_for_the_next_request(tmp_path: Path) -> None:
    (tmp_path / "team.key").write_text(f"sha256:{hashlib.sha256(b'first').hexdigest()}\n")
    top = {
        "keys": {
            "team": {"file": "./team.key", "models": ["small"]},
            "root": {"file": "./root.key", "scopes": ["admin"]},
        }
    }
    (tmp_path / "root.key").write_text("root\n")
    async with served(tmp_path, {"small": {}, "other": {}}, **top) as server:

        async def status_of(key: str, model: str) -> int:
            return (await ask(server, "/v1/chat/completions", key, chat_body(model)))[0]

        assert [await status_of("first", name) for name in ("small", "other")] == [200, 404]
        events = await server.session.get(server.url + "/events", headers={"x-api-key": "first"})
        first = (await events.content.readany()).decode()
        assert "small" in first
        assert "other" not in first
        text = (tmp_path / "models.yaml").read_text()
        (tmp_path / "models.yaml").write_text(text.replace("- small", "- other"))
        assert (await ask(server, "/admin/reload", "root", {}))[0] == 200
        assert [await status_of("first", name) for name in ("small", "other")] == [404, 200]
        assert (await ask(server, "/models/unload", "root", {"model": "small"}))[0] == 200, "so that something is told"
        rest = (await events.content.read()).decode()
        assert "other" not in rest, "the stream ends, for its key may see other models now"
        (tmp_path / "team.key").write_text("second\n")
        assert (await ask(server, "/admin/reload", "root", {}))[0] == 200
        assert [await status_of(key, "other") for key in ("first", "second")] == [401, 200]
