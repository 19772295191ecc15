"""What an operator does with a running server, over HTTP alone: follow it, pin a model, edit its configuration."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.support.event_reader import EventReader
from tests.support.served import served


@pytest.mark.slow
async def test_server_is_followed_and_changed_over_http(tmp_path: Path) -> None:
    env = {"CORRAL_ALLOW_CONFIG_EDITS": "true"}
    async with served(tmp_path, {"a": {"fake": {"TOKENS": 3}}}, env=env) as server:
        url = f"{server.url}/events?topics=models,requests"
        async with server.session.get(url, timeout=aiohttp.ClientTimeout(total=60)) as reply:
            reader = EventReader(reply)
            assert (await reader.until("model"))["state"] == "unloaded"
            assert await reader.until("requests") == []

            answer = await server.chat("a")
            assert answer.status == 200
            record = await reader.until("request")
            assert (record["model"], record["outcome"]) == ("a", "ok")
            assert record["request_id"] == answer.headers["X-Request-Id"]
            (listed,) = await server.get("/requests")
            assert listed == record

            pinned = await server.session.post(f"{server.url}/admin/pin", json={"model": "a", "pin": True})
            assert await pinned.json() == {"success": True, "model": "a", "is_pinned": True, "pin_source": "request"}
            while not (model := await reader.until("model"))["is_pinned"]:
                pass
            assert (model["state"], model["idle_unload_in_s"]) == ("ready", None)

            config = await server.get("/admin/config")
            edit = {"text": config["text"] + "default_model: a\n", "sha256": config["sha256"]}
            edit["text"] = edit["text"].replace("models:\n", "models:\n  b: {model: ./model.gguf}\n")
            verdict = await (await server.session.put(f"{server.url}/admin/config", json=edit)).json()
            assert (verdict["added"], verdict["settings"]) == (["b"], ["default_model"]), verdict
            while (model := await reader.until("model"))["id"] != "b":
                pass
        status = await server.get("/status")
        assert [(model["id"], model["is_pinned"]) for model in status["models"]] == [("b", False), ("a", True)]
        assert (tmp_path / "models.yaml").read_text() == edit["text"]
        assert sum("configuration" in line["message"] for line in server.lines) == 1
