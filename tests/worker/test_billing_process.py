"""A whole worker process drops the line that changes with every request, or keeps it, as it was told at its launch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_gguf import write_tiny_llama
from tests.worker.test_process import CHATML, Process, start
from worker.contract import FrameDecoder

NONCE = "x-anthropic-billing-header: cch=aaaaa;"


async def num_tokens(worker: Process, *system: str) -> int:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "system": [{"type": "text", "text": text} for text in system],
    }
    async with worker.session.post("http://worker/v1/messages/count_tokens", json=body) as response:
        counted, _ = FrameDecoder().feed(await response.read())
    number: int = json.loads(counted.payload)["input_tokens"]
    return number


@pytest.mark.parametrize("drops", [True, False])
async def test_the_billing_line_is_dropped_unless_the_launch_says_otherwise(tmp_path: Path, drops: bool) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf", chat_template=CHATML)
    async with start(tmp_path / "tiny.gguf", **({} if drops else {"drop_billing_header": False})) as worker:
        await worker.ready()
        without, with_line = await num_tokens(worker, "hello world"), await num_tokens(worker, NONCE, "hello world")
    assert (without == with_line) is drops
    assert without <= with_line
