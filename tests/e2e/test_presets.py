"""Several names of one loaded model, each with rules of its own, on a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.served import served, until

MODELS: dict[str, dict[str, Any]] = {
    "small": {
        "request": {"defaults": {"temperature": 0.7, "top_k": 40}, "drop": ["user"]},
        "aliases": {
            "precise": {"request": {"force": {"temperature": 0, "seed": 1}}},
            "wild-*": {"request": {"defaults": {"temperature": 1.5}, "drop": ["seed"]}},
        },
    }
}
FIELDS = ("temperature", "top_k", "seed", "user")


async def test_presets_share_one_worker_and_each_has_its_own_defaults_force_and_drop(tmp_path: Path) -> None:
    async with served(tmp_path, MODELS, default_model="wild-card") as server:
        for name, said in (
            ("small", {"user": "me", "seed": 7}),
            ("precise", {"temperature": 2, "user": "me", "seed": 7}),
            ("wild-thing", {"seed": 7}),
            ("wild-thing", {"temperature": 0.2}),
            (None, {}),
        ):
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "fake": {"tokens": 1}} | said
            async with server.session.post(f"{server.url}/v1/chat/completions", json=body) as reply:
                assert reply.status == 200
                assert (await reply.json())["model"] == "small"
                assert reply.headers.get("X-Corral-Alias") == (None if name == "small" else name or "wild-card")
        await until(lambda: len(server.journal("request")) == 5, what="the fifth request")
        got = [{key: entry["body"].get(key) for key in FIELDS} for entry in server.journal("request")]
        assert got == [
            {"temperature": 0.7, "top_k": 40, "seed": 7, "user": None},
            {"temperature": 0, "top_k": 40, "seed": 1, "user": None},
            {"temperature": 1.5, "top_k": 40, "seed": None, "user": None},
            {"temperature": 0.2, "top_k": 40, "seed": None, "user": None},
            {"temperature": 1.5, "top_k": 40, "seed": None, "user": None},
        ]
        assert len(server.journal("started")) == 1
        listed = {entry["id"]: entry["parent"] for entry in (await server.get("/v1/models"))["data"]}
        assert listed == {"small": None, "precise": "small"}
        assert (await server.get("/v1/models/wild-anything"))["parent"] == "small"
