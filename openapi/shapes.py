"""What successful replies hold, as far as every client may rely on it: their main members, and which are always there.

Owns no reply: the dialects' formatters do, and tests/fuzz/ compares. What models, slots and the server itself are is
told in docs/status.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openapi.meanings import Meanings
from worker.api.json_schemas import ANY_OBJECT, NULL, TEXT, Schema, any_of, list_of

_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_BOOLEAN: Schema = {"type": "boolean"}
_OBJECTS = list_of(ANY_OBJECT)


def _said(schema: Schema, description: str) -> Schema:
    return schema | {"description": description}


def _part(name: str, description: str = "") -> Schema:
    """Return a reference to one of `PARTS`."""
    found: Schema = {"$ref": f"#/components/schemas/{name}"}
    return _said(found, description) if description else found


def _with(optional: Mapping[str, Schema] | None = None, /, **keys: Schema) -> Schema:
    """Return the schema of an object that has at least these keys, and maybe the optional ones."""
    return {"type": "object", "properties": keys | dict(optional or {}), "required": list(keys)}


_MODEL = _said(TEXT, "The model's own name, whatever alias was asked for.")
_SEED = _said(_INTEGER, "Of the random numbers: the request's, or the one that was picked.")
_TIMINGS = _part("Timings", "Counts and times, under llama-server's names.")
_LOGPROBS = _said(any_of(ANY_OBJECT, NULL), "Log-probabilities of the answer's tokens, if they were asked for.")
_REASON = _said(TEXT, "`stop`: the answer is complete, or a stop string came. `length`: it was cut off.")
_VECTOR = list_of(_NUMBER)
_NAMED = _said(TEXT, "The model, as the request has named it.")
_CREATED_AT = _said(TEXT, "When the request came, as RFC 3339 has it.")
_USAGE_OF_TEXTS = _with(
    prompt_tokens=_said(_INTEGER, "Tokens of all texts."), total_tokens=_said(_INTEGER, "The same.")
)

PARTS: Mapping[str, Schema] = {
    "Usage": _with(
        prompt_tokens=_said(_INTEGER, "Tokens of the prompts, each once, however many answers it has."),
        completion_tokens=_said(_INTEGER, "Tokens of all answers."),
        total_tokens=_said(_INTEGER, "Both together."),
        prompt_tokens_details=_said(ANY_OBJECT, "`cached_tokens`: those that were not computed again."),
    ),
    "Timings": _with(
        {
            "draft_n": _said(_INTEGER, "Tokens that were guessed ahead."),
            "draft_n_accepted": _said(_INTEGER, "How many of these were right."),
        },
        cache_n=_said(_INTEGER, "Tokens of the prompt that were taken from the cache."),
        prompt_n=_said(_INTEGER, "Tokens of the prompt that were computed."),
        prompt_ms=_said(_NUMBER, "How long that took, in milliseconds."),
        prompt_per_second=_said(_NUMBER, "Tokens of the prompt in a second."),
        predicted_n=_said(_INTEGER, "Tokens of the answer."),
        predicted_ms=_said(_NUMBER, "How long they took, in milliseconds."),
        predicted_per_second=_said(_NUMBER, "Tokens of the answer in a second."),
    ),
}


def _generated(kind: str, choice: Schema) -> Schema:
    return _with(
        {"system_fingerprint": _said(TEXT, "Equal for all workers with the same model file.")},
        id=_said(TEXT, "Of this answer."),
        object=_said({"const": kind}, "What kind of object this is."),
        created=_said(_INTEGER, "When, in Unix seconds."),
        model=_MODEL,
        choices=_said(list_of(choice), "The answers."),
        usage=_part("Usage", "Counts of tokens."),
        seed=_SEED,
        timings=_TIMINGS,
    )


def _listing(**keys: Schema) -> Schema:
    return _with(object={"const": "list"}, **keys)


_MESSAGE = _with(
    {"reasoning_content": _said(TEXT, "What the model thought before, if that is told apart.")},
    role=_said({"const": "assistant"}, "Who says it."),
    content=_said(any_of(TEXT, NULL), "The answer."),
)
_COUNTED = _with(object=TEXT, input_tokens=_said(_INTEGER, "Tokens of the prompt."))
_DURATIONS: Mapping[str, Schema] = {
    "total_duration": _said(_INTEGER, "Nanoseconds for loading, prompt and answer."),
    "load_duration": _said(_INTEGER, "Nanoseconds that the request waited for its model to load."),
    "prompt_eval_count": _said(_INTEGER, "Tokens of the prompt."),
    "prompt_eval_duration": _said(_INTEGER, "Nanoseconds for the prompt."),
    "eval_count": _said(_INTEGER, "Tokens of the answer."),
    "eval_duration": _said(_INTEGER, "Nanoseconds for the answer."),
}
_DONE = {
    "done": _said(_BOOLEAN, "Whether this is the end of the answer."),
    "done_reason": _said(TEXT, "`stop`, `length`, or `load` and `unload` where nothing was to be answered."),
    "created_at": _CREATED_AT,
}
_LLAMA_ANSWER: Schema = {
    "type": "object",
    "description": "One answer; a request for several gets a list of them.",
    "properties": {
        "content": _said(TEXT, "The text."),
        "tokens": _said({"type": "array"}, "Its token ids, with `return_tokens`."),
        "stop": _said(_BOOLEAN, "True: this is the end of the answer."),
        "stop_type": _said(TEXT, "`eos`: it is complete. `word`: a stop string came. `limit`: it was cut off."),
        "stopping_word": _said(TEXT, "The stop string."),
        "index": _said(_INTEGER, "Which answer it is."),
        "model": _MODEL,
        "prompt": _said(TEXT, "What was continued."),
        "tokens_predicted": _said(_INTEGER, "Tokens of the answer."),
        "tokens_evaluated": _said(_INTEGER, "Tokens of the prompt."),
        "tokens_cached": _said(_INTEGER, "Tokens of the prompt that were taken from the cache."),
        "truncated": _said(_BOOLEAN, "Files of `input_extra` were left out."),
        "generation_settings": _said(ANY_OBJECT, "The values that held."),
        "timings": _TIMINGS,
    },
}
_LLAMA_VECTOR = _with(index=_said(_INTEGER, "Which text it is of."), embedding=_said(list_of(_VECTOR), "Its vector."))

REPLIES: Mapping[str, Schema] = {
    "/v1/chat/completions": _generated(
        "chat.completion",
        _with(
            index=_said(_INTEGER, "Which answer it is."),
            message=_said(_MESSAGE, "The answer as a message."),
            logprobs=_LOGPROBS,
            finish_reason=_REASON,
        ),
    ),
    "/v1/completions": _generated(
        "text_completion",
        _with(
            index=_said(_INTEGER, "Which answer it is."),
            text=_said(TEXT, "The answer."),
            logprobs=_LOGPROBS,
            finish_reason=_REASON,
        ),
    ),
    "/v1/chat/completions/input_tokens": _COUNTED,
    "/v1/responses": _with(
        {"seed": _SEED, "timings": _TIMINGS},
        id=_said(TEXT, "What a later request names as `previous_response_id`."),
        object={"const": "response"},
        created_at=_said(_INTEGER, "When, in Unix seconds."),
        model=_MODEL,
        status=_said(TEXT, "`completed`, or `incomplete` where the answer was cut off."),
        output=_said(_OBJECTS, "The answer's items: of type `message`, and `reasoning` where there is any."),
        usage=_said(ANY_OBJECT, "`input_tokens`, `output_tokens`, `total_tokens` and their details."),
    ),
    "/v1/responses/input_tokens": _COUNTED,
    "/v1/messages": _with(
        {
            "stop_reason": _said(TEXT, "`end_turn`, `stop_sequence`, or `max_tokens` where the answer was cut off."),
            "stop_sequence": _said(any_of(TEXT, NULL), "Which one came."),
            "seed": _SEED,
            "timings": _TIMINGS,
        },
        id=_said(TEXT, "Of this message."),
        type={"const": "message"},
        role={"const": "assistant"},
        model=_MODEL,
        content=_said(_OBJECTS, "The answer's blocks: of type `text`, and `thinking` where there is any."),
        usage=_said(
            ANY_OBJECT, "`input_tokens` that were computed, `cache_read_input_tokens` that were not, `output_tokens`."
        ),
    ),
    "/v1/messages/count_tokens": _with(input_tokens=_said(_INTEGER, "Tokens of the prompt.")),
    "/v1/embeddings": _listing(
        data=_said(
            list_of(
                _with(
                    object={"const": "embedding"},
                    index=_said(_INTEGER, "Which text it is of."),
                    embedding=_said(any_of(_VECTOR, TEXT), "Its vector: numbers, or with `base64` their bytes."),
                )
            ),
            "One entry for each text, in their order.",
        ),
        model=_MODEL,
        usage=_said(_USAGE_OF_TEXTS, "Counts of tokens."),
    ),
    "/v1/rerank": _listing(
        results=_said(
            list_of(
                _with(
                    {"document": _said(ANY_OBJECT, "With `return_documents`: its `text`.")},
                    index=_said(_INTEGER, "Which of `documents` it is."),
                    relevance_score=_said(_NUMBER, "How well it answers the question: what the model says, unchanged."),
                )
            ),
            "The best first.",
        ),
        model=_MODEL,
        usage=_said(_USAGE_OF_TEXTS, "Counts of tokens."),
    ),
    "/completion": any_of(_LLAMA_ANSWER, _OBJECTS),
    "/infill": any_of(_LLAMA_ANSWER, _OBJECTS),
    "/embedding": any_of(ANY_OBJECT, list_of(_LLAMA_VECTOR)),
    "/tokenize": _with(tokens=_said({"type": "array"}, "Token ids; with `with_pieces` objects of `id` and `piece`.")),
    "/detokenize": _with(content=_said(TEXT, "The text of the tokens.")),
    "/apply-template": _with(prompt=_said(TEXT, "What the model would get to read.")),
    "/api/generate": _with(
        {
            "thinking": _said(TEXT, "What the model thought before."),
            "context": _said(list_of(_INTEGER), "What a later request sends to go on from here."),
            **_DURATIONS,
        },
        model=_NAMED,
        response=_said(TEXT, "The answer."),
        **_DONE,
    ),
    "/api/chat": _with(
        dict(_DURATIONS),
        model=_NAMED,
        message=_said(ANY_OBJECT, "`role`, `content` (the answer) and, where there is any, `thinking`."),
        **_DONE,
    ),
    "/api/embed": _with(
        dict(_DURATIONS), model=_NAMED, embeddings=_said(list_of(_VECTOR), "One vector for each text, in their order.")
    ),
    "/api/embeddings": _with(embedding=_said(_VECTOR, "The vector.")),
}
"""Of routes to models, by the path that a worker knows; streamed replies are made of other pieces."""

_PROPS_OF_MODEL: Schema = {
    "type": "object",
    "description": "Of a model.",
    "properties": {
        "model_alias": _said(TEXT, "Its name."),
        "default_generation_settings": _said(ANY_OBJECT, "`params` where a request says nothing, and `n_ctx`."),
        "total_slots": _said(_INTEGER, "Requests that are computed at the same time."),
        "chat_template_caps": _said(
            any_of(ANY_OBJECT, NULL), "What the chat template can show, such as `supports_tools`; null = not known yet."
        ),
        "chat_template": _said(any_of(TEXT, NULL), "Null before its file is here."),
        "is_sleeping": _said(_BOOLEAN, "It is not loaded."),
    },
    "required": ["model_alias", "total_slots"],
}
_PROPS_OF_ROUTER: Schema = {
    "type": "object",
    "description": "Of the router, where no model is named and there is not exactly one candidate.",
    "properties": {
        "role": {"const": "router"},
        "max_instances": _said(_INTEGER, "Models in memory at the same time; 0 = as many as it holds."),
    },
    "required": ["role"],
}


_FAMILY = _with(
    name=_said(TEXT, "As `GET /metrics` has it."),
    type=_said({"enum": ["counter", "gauge", "histogram"]}, "What kind of numbers its samples are."),
    help=_said(TEXT, "What they count, in which unit."),
    samples=list_of(
        _with(
            name=_said(TEXT, "The family's, for histograms with `_bucket`, `_count` or `_sum` behind it."),
            labels=_said(ANY_OBJECT, "Label names with their values."),
            value=_NUMBER,
        )
    ),
)


def own_replies(meanings: Meanings) -> Mapping[str, Schema]:
    """Return what the router's own GET routes answer with, by path."""
    model, health, slot = (_told(meanings, f"status.md#{heading}") for heading in ("Fields", "Health", "Slots"))
    server, more, device, queue, ended, text = (
        _told(meanings, f"status.md#{heading}")
        for heading in ("The server", "A model", "A device", "The queue", "Recent requests", "The configuration")
    )
    whole_model = model | {"properties": model["properties"] | more["properties"]}
    return {
        "/v1/models": _with(object={"const": "list"}, data=list_of(model)),
        "/v1/models/{id}": model,
        "/health": health,
        "/status": _with(
            server=server, models=list_of(whole_model), devices=list_of(device), slots=list_of(slot), queue=queue
        ),
        "/requests": list_of(ended),
        "/admin/config": text,
        "/admin/keys": list_of(_told(meanings, "limits.md#Usage")),
        "/slots": list_of(slot),
        "/metrics.json": list_of(_FAMILY),
        "/props": any_of(_PROPS_OF_MODEL, _PROPS_OF_ROUTER),
        "/lora-adapters": list_of(
            _with(
                id=_said(_INTEGER, "Its place in the model's `loras`."),
                name=_said(TEXT, "Its name there."),
                scale=_said(_NUMBER, "How strong it is for requests that name none."),
            )
        ),
        "/api/version": _with(version=_said(TEXT, "The release of Ollama whose API this is.")),
        "/api/tags": _with(models=_said(_OBJECTS, "Each with `name`, `size`, `digest`, `details`.")),
        "/api/ps": _with(models=_said(_OBJECTS, "Each with `name`, `size_vram`, `expires_at`, `context_length`.")),
    }


def _told(meanings: Meanings, place: str) -> dict[str, Any]:
    told = meanings.get(place, {})
    return {
        "type": "object",
        "properties": {name: {"description": text[:1].upper() + text[1:]} for name, text in told.items()},
    }
