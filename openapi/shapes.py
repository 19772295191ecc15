"""What successful replies hold, as far as every client may rely on it: the keys that are always there.

Owns no reply: the dialects' formatters do, and tests/fuzz/ compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.api.json_schemas import ANY_OBJECT, TEXT, Schema, any_of, list_of

_INTEGER: Schema = {"type": "integer"}
_OBJECTS = list_of(ANY_OBJECT)
_BOOLEAN: Schema = {"type": "boolean"}


def _with(**keys: Schema) -> Schema:
    """Return the schema of an object that has at least these keys."""
    return {"type": "object", "properties": keys, "required": list(keys)}


def _listing(**keys: Schema) -> Schema:
    return _with(object={"const": "list"}, **keys)


def _generated(kind: str) -> Schema:
    return _with(
        id=TEXT,
        object={"const": kind},
        created=_INTEGER,
        model=TEXT,
        choices=_OBJECTS,
        usage=ANY_OBJECT,
        timings=ANY_OBJECT,
    )


_COUNTED = _with(object=TEXT, input_tokens=_INTEGER)
_VECTOR = list_of({"type": "number"})
_LOADED = {"done": _BOOLEAN, "done_reason": TEXT, "created_at": TEXT}

REPLIES: Mapping[str, Schema] = {
    "/v1/chat/completions": _generated("chat.completion"),
    "/v1/completions": _generated("text_completion"),
    "/v1/chat/completions/input_tokens": _COUNTED,
    "/v1/responses": _with(
        id=TEXT,
        object={"const": "response"},
        created_at=_INTEGER,
        model=TEXT,
        status=TEXT,
        output=_OBJECTS,
        usage=ANY_OBJECT,
    ),
    "/v1/responses/input_tokens": _COUNTED,
    "/v1/messages": _with(
        id=TEXT, type={"const": "message"}, role={"const": "assistant"}, model=TEXT, content=_OBJECTS, usage=ANY_OBJECT
    ),
    "/v1/messages/count_tokens": _with(input_tokens=_INTEGER),
    "/v1/embeddings": _listing(data=_OBJECTS, model=TEXT, usage=ANY_OBJECT),
    "/v1/rerank": _listing(results=_OBJECTS, model=TEXT, usage=ANY_OBJECT),
    "/completion": any_of(ANY_OBJECT, _OBJECTS),
    "/embedding": any_of(ANY_OBJECT, _OBJECTS),
    "/tokenize": _with(tokens={"type": "array"}),
    "/detokenize": _with(content=TEXT),
    "/apply-template": _with(prompt=TEXT),
    "/api/generate": _with(model=TEXT, response=TEXT, **_LOADED),
    "/api/chat": _with(model=TEXT, message=ANY_OBJECT, **_LOADED),
    "/api/embed": _with(model=TEXT, embeddings=list_of(_VECTOR)),
    "/api/embeddings": _with(embedding=_VECTOR),
}
"""Of routes to models, by the path that a worker knows; streamed replies are made of other pieces."""
