"""llama-server's own `/embedding`: texts in, a list of vectors out, scaled as asked.

Texts of control tokens stay plain text. Token ids are taken exactly as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field, WithJsonSchema, field_validator

from worker.api.body import read_object
from worker.api.fields import Fields, Whole, read_fields, wrong
from worker.api.llama_prompts import ALLOWED, PROMPTS, MixedPrompt, mixed_tokens, read_prompts
from worker.api.loras import refuse_adapters
from worker.api.pooled import MAX_TEXTS, PooledJob, check_can_embed, check_chars, check_tokens
from worker.api.refusals import refuse_unsupported
from worker.api.refused_llama import LLAMA_EMBEDDING
from worker.api.served import Envelope, ServedModel
from worker.api.usage import Totals
from worker.api.vectors import Vector, normalized
from worker.errors import RequestError

EUCLIDEAN = 2
"""What `embd_normalize` is unless it is said."""

Texts = Annotated[tuple[MixedPrompt, ...] | None, WithJsonSchema(PROMPTS)]


class LlamaEmbeddingFields(Fields):
    """The body of a request to `/embedding`; one of `content` and `input` has the texts."""

    content: Texts = Field(None, description=ALLOWED)
    input: Texts = Field(None, description=ALLOWED)
    embd_normalize: Whole | None = Field(None, ge=-1, le=2**31, description="an integer of at least -1")

    @field_validator("content", mode="before")
    @classmethod
    def _read_content(cls, value: Any) -> tuple[MixedPrompt, ...] | None:
        return _read(value, "content")

    @field_validator("input", mode="before")
    @classmethod
    def _read_input(cls, value: Any) -> tuple[MixedPrompt, ...] | None:
        return _read(value, "input")


def _read(value: Any, param: str) -> tuple[MixedPrompt, ...] | None:
    if value is None:
        return None
    try:
        texts = read_prompts(value, param)
    except ValueError as error:
        raise wrong(str(error)) from None
    if len(texts) > MAX_TEXTS:
        raise wrong(f"has {len(texts)} entries, but at most {MAX_TEXTS} are allowed in one request")
    return texts


def read_llama_embedding(model: ServedModel, body: bytes, envelope: Envelope) -> PooledJob:
    """Return the job that `body` describes. Raises: RequestError that names the field, and the text where it is one."""
    check_can_embed(model)
    raw = read_object(body)
    refuse_unsupported(raw, LLAMA_EMBEDDING)
    refuse_adapters(envelope.loras)
    fields = read_fields(LlamaEmbeddingFields, raw)
    if (fields.content is None) == (fields.input is None):
        which = "neither" if fields.content is None else "both"
        raise RequestError(
            f"The request has {which} of 'content' and 'input'. Send the texts in one of them.", param="content"
        )
    param = "input" if fields.content is None else "content"
    texts = fields.content or fields.input or ()
    tokens = [
        _tokens(model, one, param, f"{param}[{index}]" if len(texts) > 1 else param) for index, one in enumerate(texts)
    ]

    norm = EUCLIDEAN if fields.embd_normalize is None else fields.embd_normalize

    def whole(rows: Sequence[Vector], totals: Totals) -> bytes:
        shown = [{"index": index, "embedding": [normalized(row, norm)]} for index, row in enumerate(rows)]
        return orjson.dumps(shown, option=orjson.OPT_SERIALIZE_NUMPY)

    return PooledJob(tuple(tokens), param, whole)


def _tokens(model: ServedModel, text: MixedPrompt, param: str, place: str) -> tuple[int, ...]:
    limit = model.engine.facts.embedding_context
    num_chars = sum(len(part) for part in text if isinstance(part, str))
    check_chars(num_chars, limit=limit, place=place, param=param)
    tokens = mixed_tokens(model.vocabulary, text, add_special=True, parse_special=False, param=param)
    return check_tokens(tokens, limit=limit, place=place, param=param)
