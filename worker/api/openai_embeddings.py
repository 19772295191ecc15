"""OpenAI's `/v1/embeddings`: texts in, vectors of length 1 out.

Texts of control tokens in an input stay plain text. Token ids are taken exactly as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, WithJsonSchema, field_validator

from worker.api.body import read_object
from worker.api.fields import Fields, Whole, read_fields
from worker.api.loras import refuse_adapters
from worker.api.pooled import MAX_TEXTS, PooledJob, check_can_embed, check_chars, check_tokens
from worker.api.prompt import check_token
from worker.api.refusals import refuse_unsupported
from worker.api.refused_openai import EMBEDDINGS
from worker.api.served import Envelope, ServedModel
from worker.api.texts_or_tokens import (
    ALLOWED,
    TextOrTokens,
    is_list_of_entries,
    read_texts_or_tokens,
    texts_or_tokens_schema,
)
from worker.api.usage import Totals
from worker.api.vectors import Vector, as_base64, unit_vector
from worker.errors import RequestError


class EmbeddingFields(Fields):
    """The body of an embeddings request."""

    input: Annotated[tuple[TextOrTokens, ...], WithJsonSchema(texts_or_tokens_schema(at_most=MAX_TEXTS))] = Field(
        description=ALLOWED
    )
    encoding_format: Literal["float", "base64"] | None = Field(None, description='"float" or "base64"')
    dimensions: Whole | None = Field(None, ge=1, description="an integer of at least 1")
    user: str | None = Field(None, description="a string")

    @field_validator("input", mode="before")
    @classmethod
    def _read_input(cls, value: Any) -> tuple[TextOrTokens, ...]:
        return read_texts_or_tokens(value, at_most=MAX_TEXTS)


def read_embeddings(model: ServedModel, body: bytes, envelope: Envelope) -> PooledJob:
    """Return the job that `body` describes. Raises: RequestError that names the field, and the text where it is one."""
    check_can_embed(model)
    raw = read_object(body)
    refuse_unsupported(raw, EMBEDDINGS)
    refuse_adapters(envelope.loras)
    fields = read_fields(EmbeddingFields, raw)
    size = model.engine.facts.embedding_size
    dimensions = fields.dimensions
    if dimensions is not None and dimensions > size:
        raise RequestError(
            f"'dimensions' is {dimensions}, but the vectors of this model have {size} numbers.", param="dimensions"
        )
    is_list = is_list_of_entries(raw["input"])
    texts = [_tokens(model, one, f"input[{index}]" if is_list else "input") for index, one in enumerate(fields.input)]
    is_base64 = fields.encoding_format == "base64"

    def whole(rows: Sequence[Vector], totals: Totals) -> bytes:
        return _reply(model.name, [unit_vector(row, dimensions) for row in rows], totals, is_base64=is_base64)

    return PooledJob(tuple(texts), "input", whole)


def _tokens(model: ServedModel, one: TextOrTokens, place: str) -> tuple[int, ...]:
    limit, vocabulary = model.engine.facts.embedding_context, model.vocabulary
    if isinstance(one, str):
        check_chars(len(one), limit=limit, place=place, param="input")
        tokens: Sequence[int] = vocabulary.tokenize(one, add_special=True, parse_special=False)
    else:
        tokens = [check_token(vocabulary, token, "input", place=place) for token in one]
    return check_tokens(tokens, limit=limit, place=place, param="input")


def _reply(name: str, vectors: Sequence[Vector], totals: Totals, *, is_base64: bool) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": as_base64(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": totals.prompt_tokens, "total_tokens": totals.prompt_tokens}
    reply = {"object": "list", "data": data, "model": name, "usage": usage}
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)
