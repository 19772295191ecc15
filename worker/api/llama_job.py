"""What llama-server's two generating routes make of their fields, once their prompts are tokens.

Must not know where prompts come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.api.answer_plan import plan_text
from worker.api.engine_requests import Tokens, held_to, make_requests
from worker.api.llama_fields import LlamaFields
from worker.api.llama_reply import LlamaFormatter
from worker.api.served import Envelope, Job, ServedModel
from worker.api.text_limits import TextLimits


def llama_job(
    model: ServedModel,
    fields: LlamaFields,
    envelope: Envelope,
    prompts: Sequence[Tokens],
    *,
    param: str,
    is_truncated: bool = False,
) -> Job:
    """Return the job. `param` is the field that has the prompts.

    `is_truncated`: something that belongs to the prompts was left out.
    Raises: RequestError that names the field.
    """
    requests = make_requests(
        model,
        envelope,
        fields,
        prompts,
        param=param,
        num_choices=fields.num_choices,
        max_tokens=fields.max_answer,
        num_logprobs=fields.num_logprobs,
    )
    plan = plan_text(model, fields.read_format())
    requests = held_to(requests, plan.constraint)
    formatter = LlamaFormatter(model, fields, requests, is_truncated=is_truncated)
    limits = TextLimits(fields.max_predict_s, fields.n_indent or 0)
    return Job(requests, fields.num_choices, fields.stop, bool(fields.stream), formatter, plan, limits=limits)
