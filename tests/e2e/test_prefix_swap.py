"""A long conversation with a real model that had to leave for another one: what is computed again, and how soon."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import smollm2_path
from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.served import until
from tests.support.tiny_gguf import write_tiny_llama

pytestmark = pytest.mark.slow

NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal")
PLACES = ("the harbour", "the mill", "the old town", "the library", "the lighthouse")
FACTS = " ".join(
    f"On day {day} {NAMES[day % 8]} walked {day % 7 + 2} miles from {PLACES[day % 5]} to {PLACES[(day + 2) % 5]}."
    for day in range(1, 85)
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder: Path = tmp_path_factory.mktemp("swap")
    write_tiny_llama(folder / "tiny.gguf")
    options = {"context": 2048, "slots": 2, "device": "cpu", "prompt_cache_disk_bytes": "500MB"}
    models = {
        "a": options | {"model": str(smollm2_path())},
        "b": {"model": "./tiny.gguf", "context": 256, "device": "cpu"},
    }
    with real_server(folder, models, limits={"max_loaded": 1}) as running:
        yield running


@dataclass(frozen=True)
class Turn:
    """One answer."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float


async def turn(api: Api, messages: list[dict[str, str]], **fields: Any) -> Turn:
    body = {"model": "a", "messages": messages, "max_tokens": 24, "temperature": 0, "stream": True} | fields
    body["stream_options"] = {"include_usage": True}
    started_s = time.monotonic()
    first_s, text, usage = 0.0, "", {}
    async with api.session.post(f"{api.server.url}/v1/chat/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                first_s = first_s or (text and time.monotonic() - started_s) or 0.0
    return Turn(text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], first_s)


async def swap_to_b(api: Api) -> None:
    assert (await api.complete("b", "hello", 1)).status == 200

    async def is_unloaded() -> bool:
        return await api.state("a") == "unloaded"

    await until(is_unloaded, within_s=20, what="a to be unloaded")


async def test_a_conversation_that_comes_back_after_a_swap_computes_its_new_turn_alone(
    server: RealServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with api_of(server) as api:
        chat = [{"role": "user", "content": f"{FACTS} Who walked on day 3?"}]
        first = await turn(api, chat)
        assert first.prompt_tokens >= 1500
        await swap_to_b(api)
        chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And on day 4?"}]
        back = await turn(api, chat, max_tokens=1)
        # On the same worker, loaded by now, under a salt that nobody has used: the same prompt from its beginning.
        computed = await turn(api, chat, max_tokens=1, cache_salt="fresh")
        with capsys.disabled():
            print(  # noqa: T201 - the figures are wanted even when all is well
                f"\nafter A, B, A: {back.cached_tokens} of {back.prompt_tokens} prompt tokens were kept; first token "
                f"after {back.first_token_s:.2f} s with the load, {computed.first_token_s:.2f} s when computed anew"
            )
        assert back.cached_tokens >= 0.95 * back.prompt_tokens
        assert (computed.cached_tokens, computed.prompt_tokens) == (0, back.prompt_tokens)
        assert back.first_token_s < computed.first_token_s


async def test_a_slot_that_is_restored_by_hand_spares_the_prompt_as_well(server: RealServer) -> None:
    async with api_of(server) as api:
        chat = [{"role": "user", "content": f"{FACTS} Who walked on day 5?"}]
        await turn(api, chat, id_slot=0, cache_salt="by hand")
        named = {"model": "a", "filename": "chat", "cache_salt": "by hand"}
        status, saved = await api.post("/slots/0?action=save", named)
        assert (status, saved.get("n_saved", 0) >= 1500) == (200, True), saved
        status, erased = await api.post("/slots/0?action=erase", named)
        assert (status, erased["n_erased"]) == (200, saved["n_saved"])
        await swap_to_b(api)
        status, restored = await api.post("/slots/1?action=restore", named)
        assert (status, restored.get("n_restored")) == (200, saved["n_saved"]), restored
        again = await turn(api, chat, max_tokens=1, id_slot=1, cache_salt="by hand")
        assert again.cached_tokens == again.prompt_tokens - 1
        assert (await turn(api, chat, max_tokens=1, cache_salt="another")).cached_tokens == 0
