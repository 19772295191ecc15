"""A router that leaves in the middle of a reply is nothing that a worker's log calls an error."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from aiohttp import web

from tests.fakes.engine import FakeEngine, Script
from tests.support.worker_client import serve


@pytest.mark.parametrize("body", ['{"prompt": "x"}', "no JSON"])
async def test_write_to_a_router_that_is_gone_leaves_no_error_in_the_log(
    body: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(*_: object) -> None:
        raise ConnectionResetError("cannot write to a closing transport")

    async with serve(FakeEngine(answers=[Script([b"hi"])])) as worker:
        with monkeypatch.context() as patched:
            patched.setattr(web.StreamResponse, "write", gone)
            patched.setattr(web.StreamResponse, "write_eof", gone)
            with pytest.raises(aiohttp.ClientError):
                await worker.post("/v1/completions", body.encode())
        assert (await worker.complete("x")).end["outcome"] == "ok"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
