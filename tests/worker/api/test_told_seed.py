"""Replies of every dialect that tell the seed tell the same one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.worker_client import serve
from tests.worker.api.test_openai_chat import template
from tests.worker.api.test_openai_responses import engine

MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/messages": MESSAGES,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/completion": {"prompt": "hi"},
}


@pytest.mark.parametrize(("asked", "told"), [(5, 5), (-2, -2), (-1, 7), (10**30, int(1e30) % 2**64)])
@pytest.mark.parametrize("path", BODIES)
async def test_a_seed_is_told_as_it_was_sent_whoever_tells_it(path: str, asked: int, told: int) -> None:
    on = engine()
    async with serve(on, template=template()) as worker:
        reply = await worker.post(path, BODIES[path] | {"seed": asked})
    assert reply.json.get("generation_settings", reply.json)["seed"] == told
    assert on.submitted[0].sampling.seed == told % 2**64
