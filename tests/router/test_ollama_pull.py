"""Pulls: which names can be pulled, what their lines say, and that they end in one way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from router.auth import load_key_ring
from router.catalog import AliasSpec, Remote
from router.errors import BadRequest, ModelNotFound
from router.fetch.protocol import DOWNLOADING, JOINING, VERIFYING, FetchProgress, SourceError
from router.ollama_pull import find_pull
from router.references import Reference
from router.settings import RouterSettings
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from tests.support.stub_world import eventually

CATALOG = make_catalog(
    make_spec("smol", aliases={"gpt": AliasSpec("gpt"), "any-*": AliasSpec("any-*")}),
    make_spec("far", remote=Remote("http://127.0.0.1:9/v1", "far")),
)
PROGRESS = (
    FetchProgress(DOWNLOADING, 10, 100, "a.gguf"),
    FetchProgress(JOINING, 5, None),
    FetchProgress(VERIFYING, 100, 100),
)


@dataclass
class PullStore:
    """A store whose fetches report and end as a test says."""

    reports: tuple[FetchProgress, ...] = ()
    failure: SourceError | None = None
    hold: asyncio.Event | None = None
    """A fetch ends when it is set."""
    asked: list[tuple[str, Path]] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    num_left: int = 0
    """Waits that were given up."""

    def locate(self, reference: Reference, base_dir: Path) -> Path | None:
        return None

    def may_download(self, reference: Reference) -> bool:
        return True

    async def fetch(self, reference: Reference, base_dir: Path, on_progress: Callable[[FetchProgress], None]) -> Path:
        self.asked.append((str(reference), base_dir))
        self.started.set()
        try:
            for report in self.reports:
                on_progress(report)
                for _ in range(20):  # the client reads each
                    await asyncio.sleep(0)
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.num_left += 1
            raise
        if self.failure is not None:
            raise self.failure
        return base_dir / "file.gguf"


async def pull(side: HttpSide, key: str | None = None, **fields: Any) -> tuple[int, list[Any]]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with side.client.post("/api/pull", json=fields, headers=headers) as reply:
        return reply.status, [json.loads(line) for line in (await reply.text()).splitlines()]


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("smol", "smol.gguf"),
        ("smol:latest", "smol.gguf"),
        ("gpt", "smol.gguf"),
        ("any-thing", "smol.gguf"),
        ("hf:own/repo/a.gguf", "hf:own/repo/a.gguf"),
        ("hf:own/repo:Q8_0", "hf:own/repo:Q8_0"),
        ("hf.co/own/Repo-GGUF:Q8_0", "hf:own/Repo-GGUF:Q8_0"),
        ("huggingface.co/own/repo:q4_0", "hf:own/repo:q4_0"),
        ("https://hf.co/own/repo", "hf:own/repo:Q4_K_M"),
        ("hf.co/own/repo:latest", "hf:own/repo:Q4_K_M"),
    ],
)
def test_a_name_leads_to_a_reference(name: str, reference: str) -> None:
    assert str(find_pull(CATALOG, name).reference) == reference


def test_an_alias_that_looks_like_a_reference_is_the_model_that_has_it() -> None:
    alias = "hf.co/own/repo:Q8_0"
    catalog = make_catalog(make_spec("smol", aliases={alias: AliasSpec(alias)}))
    assert str(find_pull(catalog, alias).reference) == "smol.gguf"


def test_a_reference_is_pulled_although_an_alias_stands_for_any_name() -> None:
    catalog = make_catalog(make_spec("smol", aliases={"*": AliasSpec("*")}))
    assert str(find_pull(catalog, "hf:own/repo:Q8_0").reference) == "hf:own/repo:Q8_0"


def test_what_cannot_be_pulled_says_what_can() -> None:
    with pytest.raises(ModelNotFound, match=r"model 'llama3' not found.*hf:OWNER/REPO"):
        find_pull(CATALOG, "llama3")
    with pytest.raises(BadRequest, match="another server"):
        find_pull(CATALOG, "far")
    for name in ("hf:own", "hf.co/own", "hf:own/repo/a.bin", "hf.co/../x:Q8_0"):
        with pytest.raises(BadRequest):
            find_pull(CATALOG, name)


# --- lines ------------------------------------------------------------------------------------------------


async def test_progress_comes_line_by_line_and_the_last_one_is_success() -> None:
    store = PullStore(PROGRESS)
    async with http_side(CATALOG, store=store) as side:
        status, (first, *middle, last) = await pull(side, model="smol")
        assert status == 200
        assert first == {"status": "pulling manifest"}
        digest = middle[0]["digest"]
        assert digest.startswith("sha256:")
        assert middle == [
            {"status": f"pulling {digest[7:19]}", "digest": digest, "total": 100, "completed": 10},
            {"status": "joining parts", "digest": digest, "completed": 5},
            {"status": "verifying sha256 digest", "digest": digest, "total": 100, "completed": 100},
        ]
        assert last == {"status": "success"}
        assert store.asked == [("smol.gguf", Path("/models"))]
        assert side.supervisor.num_looks_at_files == 1, "lists show its size from now on"


async def test_a_file_that_is_not_served_comes_with_the_lines_to_write() -> None:
    async with http_side(CATALOG, store=PullStore()) as side:
        _, lines = await pull(side, name="hf.co/own/Some-Model-GGUF:Q8_0")
        assert [line["status"] for line in lines[-3:]] == [
            "  some-model:",
            "    model: hf:own/Some-Model-GGUF:Q8_0",
            "success",
        ]
        assert "models.yaml" in lines[-4]["status"]
        _, [whole] = await pull(side, model="hf:own/Some-Model-GGUF:Q8_0", stream=False)
        assert whole["status"] == "success"
        assert "    model: hf:own/Some-Model-GGUF:Q8_0" in whole["message"]


async def test_without_a_stream_there_is_one_answer_at_the_end() -> None:
    async with http_side(CATALOG, store=PullStore(PROGRESS)) as side:
        assert await pull(side, model="smol", stream=False) == (200, [{"status": "success"}])


async def test_a_pull_that_fails_ends_with_the_reason() -> None:
    store = PullStore(PROGRESS[:1], failure=SourceError("there is no such repository", is_permanent=True))
    async with http_side(CATALOG, store=store) as side:
        status, lines = await pull(side, model="hf:own/repo:Q8_0")
        assert (status, lines[-1]) == (200, {"error": "there is no such repository"})
        assert await pull(side, model="hf:own/repo:Q8_0", stream=False) == (
            503,
            [{"error": "there is no such repository"}],
        )


async def test_names_that_cannot_be_pulled_keep_their_status() -> None:
    async with http_side(CATALOG, store=PullStore()) as side:
        assert (await pull(side, model="llama3"))[0] == 404
        assert (await pull(side, model="hf:own"))[0] == 400
        assert (await pull(side))[0] == 400
        assert (await pull(side, model="smol", stream="no"))[0] == 400


async def test_pulling_needs_an_admins_key() -> None:
    ring = load_key_ring(RouterSettings(api_keys=["ordinary"], admin_keys=["mighty"]), (), {})  # type: ignore[list-item]
    store = PullStore()
    async with http_side(CATALOG, store=store, ring=ring) as side:
        assert (await pull(side, "ordinary", model="smol"))[0] == 403
        assert store.asked == []
        assert (await pull(side, "mighty", model="smol"))[0] == 200


async def test_a_client_that_leaves_waits_no_longer_and_the_store_is_left_to_go_on() -> None:
    store = PullStore(PROGRESS[:1], hold=asyncio.Event())
    async with http_side(CATALOG, store=store) as side:
        reply = await side.client.post("/api/pull", json={"model": "smol"})
        await store.started.wait()
        reply.close()
        await eventually(lambda: store.num_left)
        assert len(store.asked) == 1
