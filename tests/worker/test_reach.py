"""No request makes the server fetch or open a thing: pictures, files and sounds are refused, and schemas elsewhere."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_gguf import write_tiny_llama
from tests.worker.test_process import CHATML, start
from worker.contract import ErrorPayload, FrameDecoder, FrameType

Body = Mapping[str, Any]


def bodies(url: str) -> Iterator[tuple[str, Body]]:
    """Yield requests of all dialects that name `url` wherever it could mean a picture, a file, a sound or a schema."""
    text = {"type": "text", "text": "what is this?"}
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "image", "image": url},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "file", "file": {"file_data": url}},
        {"type": "file", "file": {"file_url": url}},
    ):
        content = [text, part]
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}
        yield "/apply-template", {"messages": [{"role": "user", "content": content}]}
    for part in (
        {"type": "input_image", "image_url": url},
        {"type": "input_file", "file_url": url},
        {"type": "input_file", "file_data": url, "filename": "x.pdf"},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
    ):
        yield "/v1/responses", {"input": [{"role": "user", "content": [part]}]}
    for source in ({"type": "url", "url": url}, {"type": "base64", "media_type": "image/png", "data": url}):
        for kind in ("image", "document"):
            block = {"type": kind, "source": source}
            result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
            call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
            for messages in ([_said([block])], [_said([text]), call, _said([result])]):
                yield "/v1/messages", {"max_tokens": 4, "messages": messages}
                yield "/v1/messages/count_tokens", {"messages": messages}
    yield "/api/chat", {"messages": [{"role": "user", "content": "what is this?", "images": [url]}]}
    yield "/api/generate", {"prompt": "what is this?", "images": [url]}
    yield "/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [url]}}
    yield "/completion", {"prompt": "what is this?", "image_data": [{"data": url, "id": 1}]}
    yield "/v1/completions", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [url]}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": url}}}
    yield "/v1/chat/completions", {"messages": [_said("x")], "response_format": schema}
    yield "/api/chat", {"messages": [_said("x")], "format": {"$ref": url}}
    yield "/completion", {"prompt": "x", "json_schema": {"$ref": url}}


def _said(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def test_pictures_files_and_sounds_are_refused_and_nothing_is_asked_for(tmp_path: Path) -> None:
    model, secret = tmp_path / "tiny.gguf", tmp_path / "secret.png"
    write_tiny_llama(model, chat_template=CHATML)
    secret.write_bytes(b"\x89PNG secret")
    data = base64.b64encode(b"\x89PNG").decode()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        async with start(model) as worker:
            await worker.ready()
            for url in (
                f"http://127.0.0.1:{port}/x.png",
                f"http://localhost:{port}/x.png",
                secret.as_uri(),
                f"data:image/png;base64,{data}",
            ):
                for path, body in bodies(url):
                    async with worker.session.post(f"http://worker{path}", json=body) as response:
                        first = FrameDecoder().feed(await response.read())[0]
                    assert first.type is FrameType.ERROR, f"{path} takes {body}: {first.payload!r}"
                    assert ErrorPayload.from_json(first.payload).status == 400, f"{path} and {body}"
        with pytest.raises(BlockingIOError):
            server.accept()
