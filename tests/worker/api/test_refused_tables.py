"""Fields of one dialect in the body of another: each is honoured, or refused with the place where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.embedder import FakeEmbedder, embedding_engine
from tests.fakes.engine import FakeEngine, Script
from tests.support.held_answers import may_be
from tests.support.worker_client import serve
from tests.worker.api.test_openai_chat import template
from worker.api.anthropic_fields import MessageFields
from worker.api.fields import Fields
from worker.api.llama_completion import LlamaCompletionFields
from worker.api.llama_embedding import LlamaEmbeddingFields
from worker.api.llama_infill import LlamaInfillFields
from worker.api.ollama_chat import OllamaChatFields
from worker.api.ollama_embed import OllamaEmbeddingsFields, OllamaEmbedFields
from worker.api.ollama_fields import OllamaOptions
from worker.api.ollama_generate import OllamaGenerateFields
from worker.api.openai_chat import ChatFields
from worker.api.openai_completions import CompletionFields
from worker.api.openai_embeddings import EmbeddingFields
from worker.api.refusals import Table
from worker.api.refused_anthropic import MESSAGES
from worker.api.refused_everywhere import FORMATS, MAXIMUM, SAMPLING, STOP
from worker.api.refused_llama import LLAMA, LLAMA_EMBEDDING
from worker.api.refused_ollama import ALL_OPTIONS, OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE
from worker.api.refused_openai import CHAT, COMPLETIONS, EMBEDDINGS, RERANK
from worker.api.refused_responses import RESPONSES
from worker.api.rerank import RerankFields
from worker.api.responses_fields import ResponsesFields

SAID = [{"role": "user", "content": "hi"}]
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi", "store": False},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/api/chat": {"messages": SAID, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/completion": {"prompt": "hi"},
}
GENERATION: Mapping[str, tuple[Table, type[Fields]]] = {
    "/v1/chat/completions": (CHAT, ChatFields),
    "/v1/completions": (COMPLETIONS, CompletionFields),
    "/v1/responses": (RESPONSES, ResponsesFields),
    "/v1/messages": (MESSAGES, MessageFields),
    "/api/chat": (OLLAMA_CHAT, OllamaChatFields),
    "/api/generate": (OLLAMA_GENERATE, OllamaGenerateFields),
    "/completion": (LLAMA, LlamaCompletionFields),
    "/infill": (LLAMA, LlamaInfillFields),
    "options of Ollama": (ALL_OPTIONS, OllamaOptions),
}
OTHERS: Mapping[str, tuple[Table, type[Fields]]] = {
    "/v1/embeddings": (EMBEDDINGS, EmbeddingFields),
    "/v1/rerank": (RERANK, RerankFields),
    "/embedding": (LLAMA_EMBEDDING, LlamaEmbeddingFields),
    "/api/embed": (OLLAMA_EMBED, OllamaEmbedFields),
    "/api/embeddings": (OLLAMA_EMBEDDINGS, OllamaEmbeddingsFields),
}
WITHOUT_A_PLACE = {"return_progress", "timings_per_token"}
"""Fields of sampling that some replies have no place for."""


async def post(path: str, **fields: Any) -> Any:
    on = FakeEngine(answers=[Script([b"ok"])] * 2)
    async with serve(on, template=template()) as worker:
        return await worker.post(path, BODIES[path] | fields)


@pytest.mark.parametrize("route", [*GENERATION, *OTHERS])
def test_no_field_is_both_honoured_and_refused(route: str) -> None:
    table, fields = {**GENERATION, **OTHERS}[route]
    assert not table.keys() & fields.model_fields.keys() - WITHOUT_A_PLACE


@pytest.mark.parametrize("route", GENERATION)
def test_every_name_of_a_limit_or_of_sampling_is_honoured_or_refused(route: str) -> None:
    table, fields = GENERATION[route]
    names = {*MAXIMUM, *STOP, *SAMPLING, *(one for one, _ in SAMPLING.values()), "top_k", "top_p", "min_p"}
    assert names <= table.keys() | fields.model_fields.keys()


@pytest.mark.parametrize("route", [one for one in GENERATION if one.startswith("/")])
def test_every_name_of_a_form_of_the_answer_is_honoured_or_refused(route: str) -> None:
    table, fields = GENERATION[route]
    assert FORMATS.keys() <= table.keys() | fields.model_fields.keys()


@pytest.mark.parametrize("route", [*GENERATION, *OTHERS])
def test_no_refusal_leads_to_a_field_that_is_not_honoured(route: str) -> None:
    table, fields = {**GENERATION, **OTHERS}[route]
    for name, refused in table.items():
        for twin in refused.twins:
            at_top, _, option = twin.partition(".")
            honoured = OllamaOptions.model_fields if option else fields.model_fields
            told = f"'{twin}'" in refused.instead
            assert (option or at_top) in honoured or not told, name


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/api/chat", {"max_tokens": 5}, "'max_tokens' is not read here. Use 'options.num_predict'"),
        ("/api/chat", {"num_predict": 5}, "Use 'options.num_predict'"),
        ("/api/generate", {"temperature": 0}, "Use 'options.temperature'"),
        ("/api/generate", {"num_ctx": 512}, "Use 'options.num_ctx'"),
        ("/api/generate", {"stop": ["x"]}, "Use 'options.stop'"),
        ("/api/generate", {"seed": 1, "options": {"seed": 2}}, "Use 'options.seed'"),
        (
            "/api/generate",
            {"options": {"max_tokens": 5}},
            "In 'options': 'max_tokens' is not read here. Use 'num_predict'",
        ),
        ("/api/generate", {"options": {"stop_sequences": ["x"]}}, "Use 'stop'"),
        ("/api/chat", {"options": {"think": False}}, "beside 'options'"),
        ("/api/chat", {"response_format": {"type": "json_object"}}, "Use 'format'"),
        ("/api/chat", {"system": "Be brief."}, "with the role 'system' in 'messages'"),
        ("/api/generate", {"tools": [{}]}, "POST /api/chat"),
        ("/v1/chat/completions", {"system": "Be brief."}, "with the role 'system' in 'messages'"),
        ("/v1/chat/completions", {"options": {"temperature": 0}}, "at the top of the body"),
        ("/v1/chat/completions", {"num_ctx": 512}, "`context` in models.yaml"),
        ("/v1/chat/completions", {"num_predict": 5}, "Use 'max_tokens'"),
        ("/v1/chat/completions", {"max_new_tokens": 5, "max_tokens": 6}, "Use 'max_tokens'"),
        ("/v1/chat/completions", {"think": False}, "Use 'enable_thinking'"),
        ("/v1/chat/completions", {"format": "json"}, "Use 'response_format'"),
        ("/v1/chat/completions", {"grammar_string": "root ::= [0-9]"}, "Use 'grammar'"),
        ("/v1/completions", {"system": "Be brief."}, "Write it into 'prompt'"),
        ("/v1/completions", {"options": {"seed": 1}}, "at the top of the body"),
        ("/v1/messages", {"options": {"seed": 1}}, "at the top of the body"),
        ("/v1/messages", {"max_completion_tokens": 5}, "Use 'max_tokens'"),
        ("/v1/messages", {"n": 2}, "several times"),
        ("/v1/messages", {"instructions": "Be brief."}, "Use 'system'"),
        ("/v1/completions", {"tools": [{}]}, "POST /v1/chat/completions"),
        ("/v1/responses", {"system": "Be brief."}, "Use 'instructions'"),
        ("/v1/responses", {"response_format": {"type": "json_object"}}, "Use 'text.format'"),
        ("/v1/responses", {"regex": "a"}, "Use 'text.format'"),
        ("/v1/responses", {"functions": [{}]}, "Use 'tools'"),
        ("/v1/responses", {"num_predict": 5}, "Use 'max_output_tokens'"),
        ("/v1/responses", {"stop_sequences": ["x"]}, "Use 'stop'"),
        ("/completion", {"max_new_tokens": 5}, "Use 'n_predict'"),
        ("/completion", {"system_prompt": "Be brief."}, "Write it into 'prompt'"),
        ("/completion", {"rep_pen": 1.2}, "Use 'repeat_penalty'"),
    ],
)
async def test_what_would_change_the_answer_is_refused_with_its_right_place(
    path: str, fields: dict[str, Any], words: str
) -> None:
    error = (await post(path, **fields)).error
    name, value = next(iter(fields.items()))
    nested = name == "options" and path.startswith("/api/")
    param = f"options.{next(iter(value))}" if nested else name
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", param)
    assert words in error.message


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/chat", {"max_tokens": 5, "options": {"num_predict": 5}}),
        ("/api/generate", {"temperature": 0.5, "top_p": 1, "options": {"temperature": 0.5, "top_p": 1.0}}),
        ("/api/generate", {"stop": [], "seed": -1, "format": "", "temperature": None}),
        ("/api/chat", {"stop": "x", "options": {"stop": ["x"]}, "chat_id": "c", "session_id": "s", "metadata": {}}),
        ("/v1/chat/completions", {"num_predict": 5, "max_tokens": 5, "system": "", "options": {}, "prompt": None}),
        ("/v1/chat/completions", {"stop_sequences": ["x"], "stop": "x", "num_ctx": 0}),
        ("/v1/completions", {"max_new_tokens": 5, "max_tokens": 5, "truncation_length": 2048, "add_bos_token": True}),
        ("/v1/completions", {"rep_pen": 1.2, "repetition_penalty": 1.2, "input": None, "messages": []}),
        ("/api/chat", {"system": "hi"}),
        ("/v1/messages", {"max_new_tokens": 9, "stop_sequences": ["x"], "stop": ["x"]}),
        ("/v1/responses", {"num_predict": 5, "max_output_tokens": 5}),
        (
            "/completion",
            {"max_new_tokens": 5, "max_tokens": 5, "n_predict": 5, "num_predict": 5, "truncation_length": 2048}
            | {"add_bos_token": True, "skip_special_tokens": True, "typical": 0.9, "typical_p": 0.9, "rep_pen": 1}
            | {"stopping_strings": ["x"], "stop": ["x"], "sampler_seed": 7, "seed": 7, "min_length": 0, "top_a": 0}
            | {"tfs": 1, "mirostat_mode": 0, "epsilon_cutoff": 0, "custom_token_bans": "", "banned_strings": []}
            | {"ban_eos_token": False, "smoothing_factor": 0, "guidance_scale": 1, "negative_prompt": ""},
        ),
    ],
)
async def test_what_another_field_says_as_well_or_nobody_asks_for_passes(path: str, fields: dict[str, Any]) -> None:
    assert (await post(path, **fields)).end["outcome"] == "ok"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {"prompt": "hi"}, "'messages'; POST /v1/completions"),
        ("/v1/chat/completions", {"input": "hi"}, "'messages'; POST /v1/responses"),
        ("/v1/completions", {"messages": SAID}, "'prompt'; POST /v1/chat/completions"),
        ("/v1/completions", {"input": "hi"}, "'prompt'; POST /v1/responses"),
        ("/v1/messages", {"prompt": "hi", "max_tokens": 9}, "'messages'; POST /v1/completions"),
        ("/v1/responses", {"messages": SAID}, "'input'; POST /v1/chat/completions"),
        ("/api/chat", {"prompt": "hi"}, "'messages'; POST /api/generate"),
        ("/api/generate", {"messages": SAID}, "'prompt'; POST /api/chat"),
        ("/completion", {"messages": SAID}, "POST /v1/chat/completions"),
        ("/tokenize", {"prompt": "hi"}, "Use 'content'"),
        ("/apply-template", {"prompt": "hi"}, "'messages'"),
    ],
)
async def test_a_body_of_another_route_is_told_which_one(path: str, body: dict[str, Any], words: str) -> None:
    async with serve(FakeEngine(answers=[]), template=template()) as worker:
        error = (await worker.post(path, body)).error
    assert (error.status, error.code) == (400, "unsupported_parameter")
    assert words in error.message


async def pooled(path: str, on: FakeEngine, **fields: Any) -> Any:
    async with serve(on, embedder=FakeEmbedder()) as worker:
        return await worker.post(path, fields)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/embeddings", {"prompt": "a"}, "Use 'input'"),
        ("/v1/embeddings", {"messages": SAID}, "POST /v1/chat/completions"),
        ("/v1/embeddings", {"input": "a", "prompt": "b"}, "Use 'input'"),
        ("/embedding", {"prompt": "a"}, "Use 'content'"),
        ("/api/embed", {"prompt": "a"}, "This route takes 'input'; POST /api/embeddings"),
        ("/api/embed", {"input": "a", "num_ctx": 8}, "Use 'options.num_ctx'"),
        ("/api/embeddings", {"input": "a"}, "This route takes 'prompt'; POST /api/embed"),
        ("/api/embeddings", {"prompt": "a", "dimensions": 2}, "POST /api/embed has this field"),
    ],
)
async def test_texts_to_embed_under_the_name_of_another_route_are_told_the_right_one(
    path: str, body: dict[str, Any], words: str
) -> None:
    error = (await pooled(path, embedding_engine(), **body)).error
    assert (error.status, error.code) == (400, "unsupported_parameter")
    assert words in error.message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a", "prompt": "a"}),
        ("/api/embed", {"input": "a", "prompt": "a", "keep_alive": "5m", "options": {"temperature": 0}}),
        ("/api/embeddings", {"prompt": "a", "input": ["a"], "dimensions": 0}),
    ],
)
async def test_texts_to_embed_that_are_said_twice_pass(path: str, body: dict[str, Any]) -> None:
    assert (await pooled(path, embedding_engine(), **body)).end["outcome"] == "ok"


TOOL = {"type": "function", "name": "f", "function": {"name": "f"}, "input_schema": {"type": "object"}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
async def test_tools_of_a_model_that_cannot_call_them_are_refused_in_the_same_words_in_every_dialect(path: str) -> None:
    tool = {name: one for name, one in TOOL.items() if path != "/v1/messages" or name != "type"}
    error = (await post(path, tools=[tool])).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "tools")
    assert "'tools' cannot be used: model 'tiny' has no chat template that could show them." in error.message


IN_EVERY_DIALECT: Mapping[str, Any] = {
    "/v1/chat/completions": lambda schema: {"response_format": {"type": "json_schema", "schema": schema}},
    "/v1/completions": lambda schema: {"json_schema": schema},
    "/v1/responses": lambda schema: {"text": {"format": {"type": "json_schema", "name": "t", "schema": schema}}},
    "/v1/messages": lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    "/api/chat": lambda schema: {"format": schema},
    "/api/generate": lambda schema: {"format": schema},
    "/completion": lambda schema: {"json_schema": schema},
}


@pytest.mark.parametrize("path", IN_EVERY_DIALECT)
async def test_a_schema_is_held_in_every_dialect(path: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    on = FakeEngine(answers=[Script([b"x"])])
    async with serve(on, template=template()) as worker:
        reply = await worker.post(path, BODIES[path] | IN_EVERY_DIALECT[path](schema))
    assert reply.end["outcome"] == "ok", reply.frames
    assert may_be(on.submitted[0], '{"a": 1}')
    assert not may_be(on.submitted[0], "{}")


@pytest.mark.parametrize("path", IN_EVERY_DIALECT)
async def test_a_schema_that_cannot_be_enforced_is_refused_in_the_same_words_in_every_dialect(path: str) -> None:
    error = (await post(path, **IN_EVERY_DIALECT[path]({"type": "array", "uniqueItems": True}))).error
    assert (error.status, error.code) == (400, "unsupported_parameter")
    assert "cannot be enforced at $.uniqueItems: " in error.message
