"""What a server tells of itself, small and whole, for the tests of `corral ps`."""

from __future__ import annotations

from typing import Any

GB = 10**9


def model(name: str, state: str = "ready", **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "parent": None,
        "state": state,
        "slots": 2,
        "is_pinned": False,
        "queue_length": 0,
        "running_requests": 0,
        "tokens_per_second": {"prompt": None, "generated": None},
        "idle_unload_in_s": None,
        **more,
    }


def slot(name: str, number: int, **more: Any) -> dict[str, Any]:
    return {"model": name, "replica": 0, "id": number, "state": "IDLE", "is_processing": False, **more}


def busy_slot(name: str, number: int, **more: Any) -> dict[str, Any]:
    busy = {
        "state": "GENERATING",
        "is_processing": True,
        "request_id": "abc123",
        "prompt_total": 120,
        "prompt_processed": 120,
        "prompt_cached": 100,
        "generated": 45,
        "tokens_per_second": 45.13,
        "age_s": 3.2,
    }
    return slot(name, number, **(busy | more))


def status(**parts: Any) -> dict[str, Any]:
    """Return an answer of `GET /status`: `chat` works and is waited for, `coder` is fetched, `bad` fails."""
    whole = {
        "server": {
            "version": "9.9.9",
            "status": "ok",
            "started_at": 0,
            "models": 4,
            "loaded": 1,
            "queue_length": 1,
            "configuration": {"path": "models.yaml", "status": "valid", "error": None, "since": None},
        },
        "models": [
            model("idle", "unloaded"),
            model("bad", "failed", reason="it is not a GGUF file", retry_in_s=240),
            model(
                "coder",
                "downloading",
                progress={"phase": "downloading", "fraction": 0.42, "done_bytes": 1, "total_bytes": 2, "detail": ""},
                memory={"needed_bytes": 2 * GB, "source": "header", "used_bytes": None},
            ),
            model(
                "chat",
                devices=["CUDA0", "CPU"],
                queue_length=1,
                running_requests=1,
                tokens_per_second={"prompt": 0.0, "generated": 45.13},
                memory={"needed_bytes": GB, "source": "probe", "used_bytes": 1_300_000_000},
            ),
        ],
        "devices": [
            {
                "id": "CUDA0",
                "kind": "gpu",
                "description": "Card [2]",
                "total_bytes": 24 * GB,
                "reserved_bytes": 6 * GB,
                "used_by_others_bytes": None,
                "free_bytes": None,
            }
        ],
        "slots": [busy_slot("chat", 0), slot("chat", 1)],
        "queue": {
            "length": 1,
            "requests": [
                {
                    "request_id": "r1",
                    "model": "chat",
                    "waits_s": 12.0,
                    "priority": 0,
                    "key": None,
                    "waiting_for": "a free place on 'chat'",
                }
            ],
        },
    }
    return whole | parts
