"""Ollama's `/api/embed` and `/api/embeddings`: texts in, vectors out.

Owns that a text which is too long is cut, as Ollama does unless told otherwise. Texts of control tokens stay plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import Field, field_validator

from worker.api.body import read_object
from worker.api.fields import Whole, wrong
from worker.api.loras import refuse_adapters
from worker.api.ollama_fields import OllamaFields, read_ollama_fields
from worker.api.ollama_reply import OllamaHead, durations
from worker.api.pooled import MAX_TEXTS, PooledJob, check_can_embed, check_tokens
from worker.api.prompt import MAX_TOKEN_CHARS
from worker.api.refusals import refuse_unsupported
from worker.api.refused_ollama import OLLAMA_EMBED, OLLAMA_EMBEDDINGS
from worker.api.served import Envelope, ReadyJob, ServedModel
from worker.api.usage import Totals
from worker.api.vectors import Vector, unit_vector
from worker.errors import RequestError, TextTooLong

_ALLOWED = "a string or a list of strings"


class OllamaEmbedFields(OllamaFields):
    """The body of `/api/embed`."""

    input: str | list[str] = Field(description=_ALLOWED)
    dimensions: Whole | None = Field(None, ge=0, description="an integer of at least 1, or 0 for all")

    @field_validator("input")
    @classmethod
    def _limit_input(cls, value: str | list[str]) -> str | list[str]:
        if isinstance(value, list) and len(value) > MAX_TEXTS:
            raise wrong(f"has {len(value)} entries, but at most {MAX_TEXTS} are allowed in one request")
        return value


class OllamaEmbeddingsFields(OllamaFields):
    """The body of `/api/embeddings`, which embeds one text."""

    prompt: str = Field(description="a string")


def read_ollama_embed(model: ServedModel, body: bytes, envelope: Envelope) -> PooledJob | ReadyJob:
    """Return the job that `body` describes. Raises: RequestError that names the field, and the text where it is one."""
    check_can_embed(model)
    refuse_adapters(envelope.loras)
    raw = read_object(body)
    refuse_unsupported(raw, OLLAMA_EMBED)
    fields = read_ollama_fields(OllamaEmbedFields, raw)
    dimensions = fields.dimensions or None
    size = model.engine.facts.embedding_size
    if dimensions is not None and dimensions > size:
        raise RequestError(
            f"'dimensions' is {dimensions}, but the vectors of this model have {size} numbers.", param="dimensions"
        )
    head = OllamaHead(fields.model or model.name, envelope.created, envelope.load_ms)
    if not fields.input:  # as with Ollama: the model is loaded, and there is nothing to embed
        return ReadyJob(_embed_reply(head, [], Totals()))
    if isinstance(fields.input, str):
        texts = [_tokens(model, fields.input, "input", fields)]
    else:
        texts = [_tokens(model, one, f"input[{index}]", fields) for index, one in enumerate(fields.input)]

    def whole(rows: Sequence[Vector], totals: Totals) -> bytes:
        return _embed_reply(head, [unit_vector(row, dimensions) for row in rows], totals)

    return PooledJob(tuple(texts), "input", whole)


def read_ollama_embeddings(model: ServedModel, body: bytes, envelope: Envelope) -> PooledJob | ReadyJob:
    """Return the job that `body` describes. Raises: RequestError that names the field."""
    check_can_embed(model)
    refuse_adapters(envelope.loras)
    raw = read_object(body)
    refuse_unsupported(raw, OLLAMA_EMBEDDINGS)
    fields = read_ollama_fields(OllamaEmbeddingsFields, raw)
    if not fields.prompt:
        return ReadyJob(orjson.dumps({"embedding": []}))

    def whole(rows: Sequence[Vector], _: Totals) -> bytes:
        return orjson.dumps({"embedding": unit_vector(rows[0], None)}, option=orjson.OPT_SERIALIZE_NUMPY)

    return PooledJob((_tokens(model, fields.prompt, "prompt", fields),), "prompt", whole)


def _embed_reply(head: OllamaHead, vectors: Sequence[Vector], totals: Totals) -> bytes:
    told = durations(totals, head.load_ms)
    reply: dict[str, Any] = {
        "model": head.model,
        "embeddings": vectors,
        **{name: told[name] for name in ("total_duration", "load_duration", "prompt_eval_count")},
    }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def _tokens(model: ServedModel, text: str, place: str, fields: OllamaFields) -> tuple[int, ...]:
    """Return the tokens of one text: all of them, or as many as may be, with what the model puts around each."""
    limit = model.engine.facts.embedding_context
    if fields.chosen.num_ctx is not None:
        limit = min(limit, fields.chosen.num_ctx)
    param = place.partition("[")[0]
    is_cut = fields.truncate is not False
    if not is_cut and len(text) > limit * MAX_TOKEN_CHARS:
        raise TextTooLong(place, len(text) // MAX_TOKEN_CHARS, limit, param=param, is_at_least=True)
    text = text[: limit * MAX_TOKEN_CHARS]  # what comes after that is in no token that is kept
    tokens = model.vocabulary.tokenize(text, add_special=True, parse_special=False)
    if is_cut and len(tokens) > limit:
        tokens = _cut(tokens, model.vocabulary.tokenize(text, add_special=False, parse_special=False), limit)
    return check_tokens(tokens, limit=limit, place=place, param=param)


def _cut(tokens: Sequence[int], plain: Sequence[int], limit: int) -> list[int]:
    """Return the first of the text's own tokens, between the ones that stand around it."""
    num_before = next(
        (
            start
            for start in range(len(tokens) - len(plain) + 1)
            if list(tokens[start : start + len(plain)]) == [*plain]
        ),
        0,
    )
    after = list(tokens[num_before + len(plain) :])
    num_kept = max(0, limit - num_before - len(after))
    return [*tokens[:num_before], *plain[:num_kept], *after][:limit]
