"""`/v1/rerank` in the form that Jina, Cohere and llama-server share: a question and documents in, scores out.

Scores are what the model's head says, as llama-server shows them; many models mean logits by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field, WithJsonSchema, field_validator

from worker.api.body import read_object
from worker.api.fields import Fields, Whole, read_fields, wrong
from worker.api.json_schemas import TEXT, any_of, list_of, object_of
from worker.api.loras import refuse_adapters
from worker.api.pooled import MAX_TEXTS, PooledJob, check_can_rank, check_chars, check_tokens
from worker.api.refusals import refuse_unsupported, show
from worker.api.refused_openai import RERANK
from worker.api.served import Envelope, ServedModel
from worker.api.usage import Totals
from worker.api.vectors import Vector

_ALLOWED = 'a list of strings, or of objects such as {"text": "..."}'


class RerankFields(Fields):
    """The body of a rerank request."""

    query: str = Field(min_length=1, description="a string that is not empty")
    documents: Annotated[
        tuple[str, ...],
        WithJsonSchema(list_of(any_of(TEXT, object_of(("text",), text=TEXT)), minItems=1, maxItems=MAX_TEXTS)),
    ] = Field(description=_ALLOWED)
    top_n: Whole | None = Field(None, ge=1, description="an integer of at least 1")
    return_documents: bool | None = Field(None, description="true or false")

    @field_validator("documents", mode="before")
    @classmethod
    def _read_documents(cls, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise wrong(f"is {show(value)}, but it must be {_ALLOWED}")
        if len(value) > MAX_TEXTS:
            raise wrong(f"has {len(value)} entries, but at most {MAX_TEXTS} are allowed in one request")
        return tuple(_one_document(index, one) for index, one in enumerate(value))


def _one_document(index: int, value: Any) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise wrong(
            f'has {show(value)} at index {index}, but it must be a string or an object such as {{"text": "..."}}'
        )
    return text


def read_rerank(model: ServedModel, body: bytes, envelope: Envelope) -> PooledJob:
    """Return the job that `body` describes. Raises: RequestError that names the field, and the document."""
    check_can_rank(model)
    assert model.pair_prompt is not None
    raw = read_object(body)
    refuse_unsupported(raw, RERANK)
    refuse_adapters(envelope.loras)
    fields = read_fields(RerankFields, raw)
    limit = model.engine.facts.embedding_context
    check_chars(len(fields.query), limit=limit, place="query", param="query")
    texts = []
    for index, document in enumerate(fields.documents):
        place = f"documents[{index}]"
        check_chars(len(document), limit=limit, place=place, param="documents")
        tokens = model.pair_prompt.tokens(fields.query, document)
        texts.append(check_tokens(tokens, limit=limit, place=f"{place} together with the query", param="documents"))

    def whole(rows: Sequence[Vector], totals: Totals) -> bytes:
        return _reply(model.name, fields, [float(row[0]) for row in rows], totals)

    return PooledJob(tuple(texts), "documents", whole)


def _reply(name: str, fields: RerankFields, scores: Sequence[float], totals: Totals) -> bytes:
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: fields.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if fields.return_documents:
        for result in results:
            result["document"] = {"text": fields.documents[result["index"]]}
    usage = {"prompt_tokens": totals.prompt_tokens, "total_tokens": totals.prompt_tokens}
    return orjson.dumps({"object": "list", "model": name, "results": results, "usage": usage})
