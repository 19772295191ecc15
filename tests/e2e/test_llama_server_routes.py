"""llama-server's own routes through a real `corral serve`, over a tiny real model with FIM tokens and adapters."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import FIM_TEXTS, write_tiny_llama
from tests.support.tiny_lora import write_tiny_lora

CHAT = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
PLAIN = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder: Path = tmp_path_factory.mktemp("native")
    write_tiny_llama(folder / "tiny.gguf", vocab="bpe", has_fim=True, chat_template=CHAT)
    write_tiny_llama(folder / "plain.gguf")
    write_tiny_lora(folder / "first.gguf", seed=1)
    models = {
        "tiny": {"model": "./tiny.gguf", "slots": 2, "context": 256},
        "asleep": {"model": "./tiny.gguf", "slots": 2, "context": 256},
        "plain": {"model": "./plain.gguf", "slots": 2, "context": 256, "loras": {"first": "./first.gguf"}},
    }
    with real_server(folder, models) as running:
        yield running


@pytest.fixture
async def api(server: RealServer) -> AsyncIterator[Api]:
    async with api_of(server) as client:
        yield client


async def complete(api: Api, model: str, prompt: Any, **fields: Any) -> Any:
    status, body = await api.post("/completion", {"model": model, "prompt": prompt, "n_predict": 12} | PLAIN | fields)
    assert status == 200, body
    return body


async def events(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with api.session.post(api.server.url + path, json=body | {"stream": True}) as reply:
        assert reply.content_type == "text/event-stream"
        lines = (await reply.text()).split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_properties_are_told_without_waking_the_model_and_are_the_same_when_it_is_loaded(api: Api) -> None:
    asleep = await api.get("/props?model=asleep")
    assert (asleep["model_alias"], asleep["model_path"], asleep["total_slots"]) == ("asleep", "tiny.gguf", 2)
    assert (asleep["bos_token"], asleep["eos_token"], asleep["chat_template"]) == ("<s>", "</s>", CHAT)
    assert (asleep["is_sleeping"], await api.state("asleep")) == (True, "unloaded")
    await complete(api, "tiny", "hello")
    assert await api.get("/props?model=tiny") == asleep | {"model_alias": "tiny", "is_sleeping": False}


async def test_streamed_and_whole_answers_are_the_same(api: Api) -> None:
    fields = {"n_probs": 2, "return_tokens": True}
    whole = await complete(api, "tiny", "tell story", **fields)
    *pieces, last = await events(
        api, "/completion", {"model": "tiny", "prompt": "tell story", "n_predict": 12} | PLAIN | fields
    )
    assert "".join(one["content"] for one in pieces) == whole["content"]
    assert [token for one in [*pieces, last] for token in one["tokens"]] == whole["tokens"]
    told = [one for event in [*pieces, last] for one in event.get("completion_probabilities", [])]
    assert [one["id"] for one in told] == whole["tokens"]
    assert last["stop_type"] == whole["stop_type"] == "limit"
    assert last["tokens_predicted"] == 12


async def test_error_before_the_first_token_keeps_its_status(api: Api) -> None:
    body = {"model": "tiny", "prompt": [7] * 256, "n_predict": 1, "stream": True}
    status, refused = await api.post("/completion", body)
    assert (status, refused["error"]["code"], refused["error"]["type"]) == (400, 400, "exceed_context_size_error")
    status, refused = await api.post("/completion", body | {"prompt": "hello", "n_probs": 101})
    assert (status, refused["error"]["param"]) == (400, "n_probs")
    assert (await complete(api, "tiny", [7] * 255, n_predict=1))["tokens_predicted"] == 1


async def test_mixed_prompts_are_the_tokens_that_tokenize_makes(api: Api) -> None:
    _, made = await api.post("/tokenize", {"model": "tiny", "content": ["hello", 7, " world"], "add_special": True})
    by_ids = await complete(api, "tiny", made["tokens"])
    mixed = await complete(api, "tiny", ["hello", 7, " world"])
    assert (mixed["content"], mixed["tokens_evaluated"]) == (by_ids["content"], len(made["tokens"]))


async def test_prompt_alone_is_computed_and_found_again(api: Api) -> None:
    prompt = "tell story " * 12
    first = await complete(api, "tiny", prompt, n_predict=0, cache_prompt=True)
    assert (first["content"], first["stop_type"], first["tokens_predicted"]) == ("", "limit", 0)
    second = await complete(api, "tiny", prompt, cache_prompt=True)
    assert second["tokens_cached"] >= first["tokens_evaluated"] - 1


async def test_progress_of_a_prompt_is_told_when_asked_for(api: Api) -> None:
    body = {"model": "tiny", "prompt": "red marker " * 60, "n_predict": 1, "return_progress": True} | PLAIN
    shown = [one["prompt_progress"] for one in await events(api, "/completion", body) if "prompt_progress" in one]
    assert shown
    assert shown[-1]["processed"] == shown[-1]["total"] > 100


async def test_tokens_come_back_as_the_text_they_were_made_of(api: Api) -> None:
    text = "hello <|im_start|> über 🙂"
    _, made = await api.post("/tokenize", {"model": "tiny", "content": text, "with_pieces": True})
    ids = [one["id"] for one in made["tokens"]]
    _, back = await api.post("/detokenize", {"model": "tiny", "tokens": ids})
    assert back["content"] == text


async def test_template_is_applied_as_for_chat(api: Api) -> None:
    messages = [{"role": "user", "content": "hello"}]
    _, applied = await api.post("/apply-template", {"model": "tiny", "messages": messages})
    assert applied == {"prompt": "<|im_start|>hello<|im_end|>"}


async def test_gap_is_filled_by_models_that_were_taught_to(api: Api) -> None:
    gap = {"input_prefix": "hello", "input_suffix": "world", "n_predict": 8} | PLAIN
    status, filled = await api.post("/infill", {"model": "tiny"} | gap)
    assert (status, filled["tokens_predicted"]) == (200, 8)
    before, suffix, middle, *_ = FIM_TEXTS
    assert filled["prompt"] == f"<s>{before}hello{suffix}world{middle}"
    editor = {"samplers": ["top_k", "top_p", "infill"], "n_indent": 2, "t_max_predict_ms": 1000, "ignore_eos": False}
    status, filled = await api.post("/infill", {"model": "tiny"} | gap | editor)
    assert (status, filled["generation_settings"]["samplers"]) == (200, editor["samplers"])
    status, refused = await api.post("/infill", {"model": "plain"} | gap)
    assert (status, "does not support filling in the middle" in refused["error"]["message"]) == (400, True)


async def test_adapters_that_are_set_change_answers_until_they_are_taken_back(api: Api) -> None:
    alone = (await complete(api, "plain", "tell story"))["content"]
    adapted = (await complete(api, "plain", "tell story", lora=[{"id": 0, "scale": 1}]))["content"]
    assert adapted != alone
    for entries, expected in (([{"id": 0, "scale": 1.0}], adapted), ([], alone)):
        data = json.dumps(entries).encode()
        assert await api.post("/lora-adapters?model=plain", data) == (200, {"success": True})
        assert (await complete(api, "plain", "tell story"))["content"] == expected


async def test_native_embeddings_are_openais_in_another_form(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path / "bert.gguf")
    with real_server(tmp_path, {"bert": {"model": "./bert.gguf"}}) as running:
        async with api_of(running) as api:
            status, native = await api.post("/embedding", {"content": ["hello world", "tell"]})
            assert status == 200, native
            _, openai = await api.post("/v1/embeddings", {"input": ["hello world", "tell"]})
            _, tokens = await api.post("/tokenize", {"content": "hello"})
    assert tokens["tokens"]
    for one, other in zip(native, openai["data"], strict=True):
        assert one["embedding"][0] == pytest.approx(other["embedding"], abs=1e-5)
