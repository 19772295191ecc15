"""llama-server's `/tokenize`, `/detokenize` and `/apply-template`: what text is to the model, without a pass of it.

Owns their fields and replies. Must not know how templates work.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import Field, WithJsonSchema, field_validator

from worker.api.body import read_object
from worker.api.chat_prompt import MESSAGES, Conversation, continues_last, render
from worker.api.fields import FIRST_ONLY, Fields, Whole, read_fields, wrong
from worker.api.function_fields import ToolFields
from worker.api.json_schemas import TEXT, any_of, list_of
from worker.api.llama_prompts import mixed_tokens
from worker.api.ports import Vocabulary
from worker.api.prompt import check_token, text_of_tokens
from worker.api.refusals import refuse_unsupported, show
from worker.api.refused_llama import APPLY_TEMPLATE, TOKENIZE
from worker.api.served import Envelope, ReadyJob, ServedModel
from worker.api.thought_fields import ThoughtFields

MAX_CONTENT_CHARS = 2**21
"""More than any context holds; tokenising it takes about a second."""


class TokenizeFields(Fields):
    """The body of a request to `/tokenize`. None = not said."""

    content: Annotated[
        tuple[str | int, ...], WithJsonSchema(any_of(TEXT, list_of({"type": ["string", "integer"]})))
    ] = Field(description="text, or a list of texts and token ids")
    add_special: bool | None = Field(None, description="true or false")
    parse_special: bool | None = Field(None, description="true or false")
    with_pieces: bool | None = Field(None, description="true or false")

    @field_validator("content", mode="before")
    @classmethod
    def _read_content(cls, value: Any) -> tuple[str | int, ...]:
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in parts):
            raise wrong(f"is {show(value)}, but it must be text, or a list of texts and token ids")
        if (num_chars := sum(len(part) for part in parts if isinstance(part, str))) > MAX_CONTENT_CHARS:
            raise wrong(f"has {num_chars} characters, but at most {MAX_CONTENT_CHARS} are allowed in one request")
        return tuple(parts)


class DetokenizeFields(Fields):
    """The body of a request to `/detokenize`."""

    tokens: Annotated[list[Whole], FIRST_ONLY] = Field(description="a list of token ids")


class ApplyTemplateFields(ToolFields, ThoughtFields):
    """The body of a request to `/apply-template`: what of a chat request the prompt depends on. None = not said."""

    messages: Annotated[list[Any], WithJsonSchema(MESSAGES)] = Field(description="a list of messages")
    chat_template: str | None = Field(None, min_length=1, description="a string that is not empty")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")
    add_generation_prompt: bool | None = Field(None, description="true or false")
    continue_final_message: bool | None = Field(None, description="true or false")


def read_tokenize(model: ServedModel, body: bytes, envelope: Envelope) -> ReadyJob:
    """Return the tokens of a text. Texts of control tokens count as such unless `parse_special` is false."""
    raw = read_object(body)
    refuse_unsupported(raw, TOKENIZE)
    fields = read_fields(TokenizeFields, raw)
    tokens = mixed_tokens(
        model.vocabulary,
        fields.content,
        add_special=bool(fields.add_special),
        parse_special=fields.parse_special is not False,
        param="content",
    )
    shown: list[Any] = tokens
    if fields.with_pieces:
        shown = [{"id": token, "piece": _piece(model.vocabulary, token)} for token in tokens]
    return ReadyJob(orjson.dumps({"tokens": shown}), len(tokens))


def read_detokenize(model: ServedModel, body: bytes, envelope: Envelope) -> ReadyJob:
    """Return the text of tokens, control tokens included. Bytes that are no text become U+FFFD."""
    fields = read_fields(DetokenizeFields, read_object(body))
    vocabulary = model.vocabulary
    tokens = [check_token(vocabulary, one, "tokens") for one in fields.tokens]
    return ReadyJob(orjson.dumps({"content": text_of_tokens(vocabulary, tokens)}), len(tokens))


def read_apply_template(model: ServedModel, body: bytes, envelope: Envelope) -> ReadyJob:
    """Return the prompt that a chat request with these messages would have, as text."""
    raw = read_object(body)
    refuse_unsupported(raw, APPLY_TEMPLATE)
    fields = read_fields(ApplyTemplateFields, raw)
    offered = fields.read_tools().tools
    conversation = Conversation(
        fields.messages,
        tools=fields.shown_tools if offered.offered else None,
        offered=offered,
        adds_generation_prompt=fields.add_generation_prompt is not False,
        continues=continues_last(
            fields.messages,
            continue_final_message=fields.continue_final_message,
            add_generation_prompt=fields.add_generation_prompt,
        ),
        kwargs=fields.chat_template_kwargs or {},
        thinking=fields.thinking,
        template=fields.chat_template,
    )
    prompt = "".join(segment.text for segment in render(model, conversation, envelope))
    return ReadyJob(orjson.dumps({"prompt": prompt}))


def _piece(vocabulary: Vocabulary, token: int) -> str | list[int]:
    """Return the text of a token, or its bytes if they are none."""
    raw = vocabulary.piece(token, special=True)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
