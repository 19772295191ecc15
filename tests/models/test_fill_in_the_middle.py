"""Filling in the middle with a real model for code, by llama-server's route and by OpenAI's `suffix`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.models import qwen_coder_path
from tests.support.real_server import Api, RealServer, api_of, real_server

pytestmark = pytest.mark.models

BEFORE = "def add(a, b):\n"
AFTER = "\n\nprint(add(1, 2))\n"
EXPECTED = "return a + b"


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    file = {"model": str(qwen_coder_path()), "context": 1024, "slots": 2}
    with real_server(tmp_path_factory.mktemp("coder"), {"coder": file}) as server:
        yield server


@pytest.fixture
async def api(coder: RealServer) -> AsyncIterator[Api]:
    async with api_of(coder) as client:
        yield client


async def ask(api: Api, path: str, **fields: Any) -> Any:
    status, reply = await api.post(path, {"model": "coder", "temperature": 0} | fields)
    assert status == 200, reply
    return reply


async def test_infill_finds_the_line_between(api: Api) -> None:
    reply = await ask(api, "/infill", input_prefix=BEFORE, input_suffix=AFTER, n_predict=24, stop=["\n\n"])
    assert EXPECTED in reply["content"]
    assert reply["prompt"].startswith("<|fim_prefix|>def add")


async def test_infill_reads_other_files(api: Api) -> None:
    extra = [{"filename": "names.py", "text": "GREETING_FOR_GUESTS = 'welcome to the house'\n"}]
    before = "from names import GREETING_FOR_GUESTS\n\n\ndef greet():\n    print("
    reply = await ask(api, "/infill", input_prefix=before, input_suffix=")\n", input_extra=extra, n_predict=16)
    assert "GREETING" in reply["content"]
    assert reply["prompt"].startswith("<|repo_name|>project\n<|file_sep|>names.py\n")


async def test_suffix_of_openais_route_finds_the_same_line(api: Api) -> None:
    reply = await ask(api, "/v1/completions", prompt=BEFORE, suffix=AFTER, max_tokens=24, stop=["\n\n"])
    assert EXPECTED in reply["choices"][0]["text"]
