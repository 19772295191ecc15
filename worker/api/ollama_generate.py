"""Ollama's `/api/generate`: one prompt in, text out.

Owns which of the four kinds of prompts a body holds: one turn of a conversation (after an earlier one, by `context`),
a raw prompt, a gap to be filled, or plain text for a model without a chat template.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from worker.api.answer_plan import plan_answer, plan_text
from worker.api.answer_wishes import AnswerWishes
from worker.api.body import read_object
from worker.api.chat_prompt import ChatPrompt, Conversation, make_chat_prompt
from worker.api.engine_requests import held_to, make_requests
from worker.api.fields import FIRST_ONLY, Whole
from worker.api.fim_prompt import Gap, fim_prompt
from worker.api.logprobs import chat_logprobs
from worker.api.ollama_fields import (
    NDJSON,
    OllamaGenerationFields,
    options_named_as_written,
    read_ollama_fields,
    refuse_images,
)
from worker.api.ollama_reply import OllamaFormatter, OllamaHead, as_response
from worker.api.prompt import check_text_length, tokens_of_raw_prompt
from worker.api.refusals import refuse_unsupported
from worker.api.refused_ollama import OLLAMA_GENERATE
from worker.api.served import Envelope, Job, ServedModel
from worker.api.text_limits import TextLimits
from worker.errors import NoChatTemplate, RequestError

Tokens = tuple[int, ...]


class OllamaGenerateFields(OllamaGenerationFields):
    """The body of a request to continue a prompt."""

    prompt: str | None = Field(None, description="a string")
    suffix: str | None = Field(None, description="a string")
    system: str | None = Field(None, description="a string")
    raw: bool | None = Field(None, description="true or false")
    context: Annotated[list[Whole], FIRST_ONLY] | None = Field(None, description="a list of token ids")


def read_ollama_generate(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, OLLAMA_GENERATE)
    fields = read_ollama_fields(OllamaGenerateFields, raw)
    refuse_images(raw, "images")
    prompt = _prompt(model, fields, envelope)
    tokens = prompt.tokens if isinstance(prompt, ChatPrompt) else prompt
    options = fields.chosen
    with options_named_as_written():
        requests = make_requests(
            model,
            envelope,
            options,
            [tokens],
            param="prompt",
            max_tokens=fields.max_tokens(len(tokens), model.context),
            num_logprobs=fields.num_logprobs,
        )
    if isinstance(prompt, ChatPrompt):
        plan = plan_answer(model, AnswerWishes(fields.read_format()), prompt, envelope)
    else:
        plan = plan_text(model, fields.read_format())
    requests = held_to(requests, plan.constraint)
    formatter = OllamaFormatter(
        OllamaHead(fields.model or model.name, envelope.created, envelope.load_ms),
        as_response,
        logprobs=None if fields.num_logprobs is None else partial(chat_logprobs, model.vocabulary),
        context=None if fields.raw else tokens,
    )
    return Job(
        requests,
        1,
        options.stop,
        fields.is_stream,
        formatter,
        plan,
        stream_type=NDJSON,
        limits=TextLimits(options.max_predict_s),
    )


def _prompt(model: ServedModel, fields: OllamaGenerateFields, envelope: Envelope) -> ChatPrompt | Tokens:
    """Return the prompt: plain tokens where no chat template has to do with it."""
    if fields.suffix:
        _refuse_together(fields, "suffix", "system", "context", "think")
        gap = Gap(fields.prompt or "", fields.suffix)
        return fim_prompt(model, gap, num_answer=fields.chosen.wanted_tokens or 1).tokens
    if fields.raw:
        _refuse_together(fields, "raw", "system", "context", "think")
        return _plain_tokens(model, fields.prompt or "")
    earlier = _checked(model, fields.context or ())
    if model.template is None and model.template_problem is None:
        if fields.system or fields.think:
            raise NoChatTemplate(
                f"Model '{model.name}' has no chat template, so '{'system' if fields.system else 'think'}' means "
                "nothing to it. Leave the field out, or set `chat_template` for this model in models.yaml."
            )
        return _after(model, earlier, _plain_tokens(model, fields.prompt or ""))
    prompt = make_chat_prompt(model, _turn(fields), envelope)
    return replace(prompt, tokens=_after(model, earlier, prompt.tokens))


def _turn(fields: OllamaGenerateFields) -> Conversation:
    """Return a conversation of one turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": fields.system}] if fields.system else []
    messages.append({"role": "user", "content": fields.prompt or ""})
    return Conversation(
        messages,
        kwargs=fields.chat_template_kwargs or {},
        thinking=fields.thinking,
        param="prompt",
    )


def _plain_tokens(model: ServedModel, text: str) -> Tokens:
    check_text_length(len(text), context=model.context, param="prompt")
    tokens = tuple(tokens_of_raw_prompt(model.vocabulary, text))
    if not tokens:
        raise RequestError("'prompt' is empty: this model needs at least one token to start from.", param="prompt")
    return tokens


def _after(model: ServedModel, earlier: Tokens, tokens: Tokens) -> Tokens:
    """Return both as one prompt, which has its BOS already when it has a beginning."""
    vocabulary = model.vocabulary
    if earlier and vocabulary.add_bos and tokens[:1] == (vocabulary.bos,):
        tokens = tokens[1:]
    return earlier + tokens


def _checked(model: ServedModel, context: list[int] | tuple[()]) -> Tokens:
    last = model.vocabulary.num_vocab - 1
    for token in context:
        if not 0 <= token <= last:
            raise RequestError(
                f"'context' has the token id {token}, but the ids of this model are 0 to {last}. Send back what a "
                "reply of this very model had, or leave the field out.",
                param="context",
            )
    return tuple(context)


def _refuse_together(fields: OllamaGenerateFields, name: str, *others: str) -> None:
    for other in others:
        if getattr(fields, other):
            raise RequestError(
                f"'{name}' and '{other}' cannot be used together: the chat template is left out with '{name}', and "
                f"'{other}' is about it. Leave one of them out.",
                param=other,
            )
