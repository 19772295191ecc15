"""OpenAI's `/v1/completions`: raw prompts in, text out.

A raw prompt is its author's own responsibility: special tokens written in it count as such, as in the peers. Token
ids are taken exactly as they come, without a BOS. With a `suffix` the prompt is the text before a gap, and plain text.
A form that is asked for is that of the answer alone, without its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import orjson
from pydantic import Field, WithJsonSchema, field_validator

from worker.api.answer_plan import plan_text
from worker.api.body import read_object
from worker.api.engine_requests import MAX_ALL_CHOICES, check_num_choices, held_to, make_requests
from worker.api.fields import Whole, read_fields
from worker.api.fim_prompt import Gap, fim_prompt
from worker.api.format_fields import FormatFields
from worker.api.formatter import Answer, Ending, Formatter, Piece, told_verdict
from worker.api.logprobs import MAX_TOP, Shape, completion_logprobs
from worker.api.openai_fields import MAX_CHOICES, GenerationFields
from worker.api.openai_reply import ChunkStream, Head, fingerprint, finish_reason, whole_reply
from worker.api.prompt import check_text_length, check_token, text_of_tokens, tokens_of_raw_prompt
from worker.api.refusals import refuse_unsupported
from worker.api.refused_openai import COMPLETIONS
from worker.api.served import Envelope, Job, ServedModel
from worker.api.text_limits import TextLimits
from worker.api.texts_or_tokens import ALLOWED, TextOrTokens, read_texts_or_tokens, texts_or_tokens_schema
from worker.api.usage import Totals
from worker.chat.deltas import text_of
from worker.engine.request import FinishReason, PrefillProgress
from worker.errors import RequestError, UnsupportedParameter


class CompletionFields(GenerationFields, FormatFields):
    """The body of a completion request."""

    prompt: Annotated[tuple[TextOrTokens, ...], WithJsonSchema(texts_or_tokens_schema(at_most=MAX_ALL_CHOICES))] = (
        Field(description=ALLOWED)
    )
    logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP, description=f"an integer from 0 to {MAX_TOP}")
    suffix: str | None = Field(None, description="a string")
    echo: bool | None = Field(None, description="true or false")
    best_of: Whole | None = Field(None, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")

    @field_validator("logprobs", mode="before")
    @classmethod
    def _read_off(cls, value: Any) -> Any:
        """Return None for false, which asks for nothing although it belongs to chat."""
        return None if value is False else value

    @field_validator("prompt", mode="before")
    @classmethod
    def _read_prompt(cls, value: Any) -> tuple[TextOrTokens, ...]:
        return read_texts_or_tokens(value, at_most=MAX_ALL_CHOICES)


def read_completion(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Prompt `p`'s answer `k` has the index p x n + k.

    Raises: RequestError that names the field.
    """
    raw = read_object(body)
    refuse_unsupported(raw, COMPLETIONS)
    fields = read_fields(CompletionFields, raw)
    _check_combinations(fields)
    check_num_choices(len(fields.prompt) * fields.num_choices, param="prompt")
    requests = make_requests(
        model,
        envelope,
        fields,
        [_tokens(model, prompt, fields) for prompt in fields.prompt],
        param="prompt",
        num_choices=fields.num_choices,
        max_tokens=fields.max_answer,
        num_logprobs=fields.logprobs,
    )
    plan = plan_text(model, fields.read_format())
    requests = held_to(requests, plan.constraint)
    head = Head(
        f"cmpl-{envelope.request_id}",
        envelope.created,
        model.name,
        fingerprint(model.engine.facts),
        fields.told_seed(requests[0].sampling.seed),
    )
    shape = None if fields.logprobs is None else partial(completion_logprobs, model.vocabulary)
    echoed = [_text(model, prompt) for prompt in fields.prompt] if fields.echo else []
    echoes = [text for text in echoed for _ in range(fields.num_choices)]
    formatter = CompletionFormatter(head, includes_usage=fields.includes_usage, logprobs=shape, echoes=echoes)
    return Job(
        requests,
        fields.num_choices,
        fields.stop,
        bool(fields.stream),
        formatter,
        plan,
        limits=TextLimits(fields.max_predict_s),
    )


def _check_combinations(fields: CompletionFields) -> None:
    """Return if the fields go together. Raises: RequestError that names one of them."""
    if fields.echo and fields.logprobs is not None:
        raise UnsupportedParameter(
            "'echo' together with 'logprobs' asks for log-probabilities of the prompt, which are not available in this "
            "release. Leave one of the two out.",
            param="echo",
        )
    if fields.best_of is not None and fields.best_of < fields.num_choices:
        raise RequestError(
            f"'best_of' is {fields.best_of}, but it must be at least 'n', which is {fields.num_choices}.",
            param="best_of",
        )
    if fields.best_of is not None and fields.best_of > fields.num_choices:
        raise UnsupportedParameter(
            f"'best_of' is {fields.best_of} and 'n' is {fields.num_choices}, but choosing among more answers than are "
            "returned is not available in this release. Leave 'best_of' out, or set 'n' to the same number.",
            param="best_of",
        )


def _text(model: ServedModel, prompt: TextOrTokens) -> str:
    """Return the prompt as it is echoed."""
    if isinstance(prompt, str):
        return prompt
    return text_of_tokens(model.vocabulary, prompt)


def _tokens(model: ServedModel, prompt: TextOrTokens, fields: CompletionFields) -> tuple[int, ...]:
    vocabulary = model.vocabulary
    if fields.suffix:
        if not isinstance(prompt, str):
            raise RequestError("'suffix' needs a 'prompt' that is text, not token ids.", param="suffix")
        return fim_prompt(model, Gap(prompt, fields.suffix)).tokens
    if isinstance(prompt, str):
        check_text_length(len(prompt), context=model.context, param="prompt")
        tokens = tuple(tokens_of_raw_prompt(vocabulary, prompt))
        if not tokens:
            raise RequestError("'prompt' is empty: this model needs at least one token to start from.", param="prompt")
        return tokens
    return tuple(check_token(vocabulary, token, "prompt") for token in prompt)


class CompletionFormatter(Formatter):
    """Replies of kind `text_completion`, streamed or whole."""

    def __init__(
        self, head: Head, *, includes_usage: bool, logprobs: Shape | None = None, echoes: Sequence[str] = ()
    ) -> None:
        self._head = head
        self._logprobs = logprobs
        self._echoes = echoes
        """What stands in front of each choice; empty = nothing is echoed."""
        self._chunks = ChunkStream(head, "text_completion", includes_usage=includes_usage)
        self._affixes: dict[int, tuple[bytes, bytes]] = {}

    def first(self, choice: int, totals: Totals) -> bytes:
        """Return the prompt where it is echoed; a completion has no other opening."""
        return self._chunks.chunk(_choice(choice, self._echoes[choice], None)) if self._echoes else b""

    def progress(self, choice: int, progress: PrefillProgress) -> bytes:
        """Return the chunk that tells how far the prompt is."""
        return self._chunks.progress(_choice(choice, "", None), progress)

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return one more piece of text."""
        text = text_of([piece.delta])
        if self._logprobs is not None or piece.totals is not None:
            logprobs = self._logprobs(piece.picks) if self._logprobs is not None else None
            return self._chunks.chunk(_choice(choice, text, logprobs), piece.totals)
        if choice not in self._affixes:
            after = b',"index":%d,"logprobs":null,"finish_reason":null}' % choice
            self._affixes[choice] = self._chunks.affixes(b'{"text":', after)
        before, after = self._affixes[choice]
        return before + orjson.dumps(text) + after

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return the chunk with the finish reason."""
        logprobs = self._logprobs(ending.picks) if self._logprobs and ending.picks else None
        return self._chunks.last_chunk(_choice(choice, "", logprobs, ending.finish) | told_verdict(ending), totals)

    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""
        return self._chunks.closing(totals)

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the reply in one piece."""
        echoes = self._echoes or [""] * len(answers)
        choices = [
            _choice(
                index,
                echoes[index] + one.text,
                self._logprobs(one.ending.picks) if self._logprobs else None,
                one.ending.finish,
            )
            | told_verdict(one.ending)
            for index, one in enumerate(answers)
        ]
        return whole_reply(self._head, "text_completion", choices, totals)


def _choice(
    index: int, text: str, logprobs: Mapping[str, Any] | None, finish: FinishReason | None = None
) -> dict[str, Any]:
    reason = None if finish is None else finish_reason(finish)
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
