"""llama-server's own `/completion`: raw prompts in all of its forms in, text out.

Special tokens written in a prompt count as such, as in the peers; token ids are taken exactly as they come.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from worker.api.body import read_object
from worker.api.engine_requests import check_num_choices
from worker.api.fields import read_fields, wrong
from worker.api.llama_fields import LlamaFields
from worker.api.llama_job import llama_job
from worker.api.llama_prompts import ALLOWED, PROMPTS, MixedPrompt, prompt_tokens, read_prompts
from worker.api.refusals import refuse_unsupported
from worker.api.refused_llama import LLAMA
from worker.api.served import Envelope, Job, ServedModel


class LlamaCompletionFields(LlamaFields):
    """The body of a request to `/completion`."""

    prompt: Annotated[tuple[MixedPrompt, ...], WithJsonSchema(PROMPTS)] = Field(description=ALLOWED)

    @field_validator("prompt", mode="before")
    @classmethod
    def _read_prompt(cls, value: Any) -> tuple[MixedPrompt, ...]:
        try:
            return read_prompts(value, "prompt")
        except ValueError as error:
            raise wrong(str(error)) from None


def read_llama_completion(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Prompt `p`'s answer `k` has the index p x n_cmpl + k.

    Raises: RequestError that names the field.
    """
    raw = read_object(body)
    refuse_unsupported(raw, LLAMA)
    fields = read_fields(LlamaCompletionFields, raw)
    check_num_choices(len(fields.prompt) * fields.num_choices, param="prompt")
    prompts = [
        prompt_tokens(model.vocabulary, prompt, context=model.context, param="prompt") for prompt in fields.prompt
    ]
    return llama_job(model, fields, envelope, prompts, param="prompt")
