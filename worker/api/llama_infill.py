"""llama-server's `/infill`: what stands around a gap in, the text that fills it out.

All text of the client stays plain text. Other files that do not fit are left out, which the reply tells as `truncated`.
"""

from __future__ import annotations

from pydantic import Field

from worker.api.body import read_object
from worker.api.fields import Fields, read_fields
from worker.api.fim_prompt import ExtraFile, Gap, fim_prompt
from worker.api.llama_fields import LlamaFields
from worker.api.llama_job import llama_job
from worker.api.refusals import refuse_unsupported
from worker.api.refused_llama import LLAMA
from worker.api.served import Envelope, Job, ServedModel

MAX_EXTRAS = 256


class ExtraFields(Fields):
    """One entry of `input_extra`."""

    filename: str = Field(description="a string")
    text: str = Field(description="a string")


class LlamaInfillFields(LlamaFields):
    """The body of a request to `/infill`. None = not said."""

    input_prefix: str = Field(description="a string")
    input_suffix: str = Field(description="a string")
    prompt: str | None = Field(None, description="a string")
    input_extra: list[ExtraFields] | None = Field(
        None, max_length=MAX_EXTRAS, description=f'a list of up to {MAX_EXTRAS} objects such as {{"filename", "text"}}'
    )


def read_infill(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, LLAMA)
    fields = read_fields(LlamaInfillFields, raw)
    gap = Gap(
        fields.input_prefix,
        fields.input_suffix,
        [ExtraFile(one.filename, one.text) for one in fields.input_extra or ()],
        start=fields.prompt or "",
        prefix_param="input_prefix",
        suffix_param="input_suffix",
    )
    prompt = fim_prompt(model, gap, num_answer=fields.max_answer or 1)
    is_truncated = prompt.num_left_out > 0
    return llama_job(model, fields, envelope, [prompt.tokens], param="input_prefix", is_truncated=is_truncated)
