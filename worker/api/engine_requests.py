"""Prompts and checked fields to what the engine is asked, the same for every dialect.

Owns how limits meet: what a request wants, the model's cap, the room in the context. Must not read bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from worker.api.loras import choose_adapters
from worker.api.prompt import check_length
from worker.api.sampling_fields import SamplingFields
from worker.api.served import Envelope, ServedModel
from worker.engine.constraint import MakeConstraint
from worker.engine.request import GenerationRequest
from worker.errors import RequestError

Tokens = tuple[int, ...]

MAX_ALL_CHOICES = 256
"""Prompts times answers to each in one request: each is a sequence of its own in the engine's queue."""


def check_num_choices(num_all: int, *, param: str) -> None:
    """Return if one request may ask for so many answers in all. Raises: RequestError."""
    if num_all > MAX_ALL_CHOICES:
        raise RequestError(
            f"'{param}' asks for {num_all} answers in all, but at most {MAX_ALL_CHOICES} are allowed in one request.",
            param=param,
        )


def make_requests(
    model: ServedModel,
    envelope: Envelope,
    fields: SamplingFields,
    prompts: Sequence[Tokens],
    *,
    param: str,
    num_choices: int = 1,
    max_tokens: int | None = None,
    num_logprobs: int | None = None,
) -> tuple[GenerationRequest, ...]:
    """Return the sequences of one client request: prompt `p`'s answer `k` has the index p x num_choices + k.

    `param` is the field that has the prompts. Without `max_tokens` an answer may take all the room there is.
    Raises: RequestError that names the field.
    """
    is_post_sampling = fields.wants_post_sampling(num_logprobs)
    adapters = choose_adapters(model.loras, fields.lora, envelope.loras)
    sampling = fields.sampling(model.vocabulary, fallback_seed=envelope.seed)
    slot = _wanted_slot(fields.id_slot, model.engine.facts.slots)
    requests: list[GenerationRequest] = []
    for prompt in prompts:
        room = check_length(prompt, context=model.context, param=param)
        limits = (limit for limit in (room, model.max_tokens, max_tokens) if limit is not None)
        request = GenerationRequest(
            prompt=prompt,
            max_tokens=min(limits),
            sampling=sampling,
            external_id=envelope.request_id,
            priority=envelope.priority,
            cache_prompt=fields.cache_prompt is not False,
            cache_salt=envelope.cache_salt,
            owner=envelope.owner,
            num_logprobs=num_logprobs,
            post_sampling_logprobs=is_post_sampling,
            adapters=adapters,
            itl_target_ms=fields.itl_target_ms,
            reproducible=bool(fields.reproducible),
            min_tokens=fields.min_tokens or 0,
            slot=slot,
            wants_progress=bool(fields.return_progress),
            wants_timings=bool(fields.timings_per_token),
            key=envelope.key_id,
        )
        for _ in range(num_choices):
            requests.append(replace(request, sampling=replace(sampling, choice=len(requests))))
    return tuple(requests)


def held_to(
    requests: tuple[GenerationRequest, ...], constraint: MakeConstraint | None
) -> tuple[GenerationRequest, ...]:
    """Return the requests, whose answers are held to this. Made after them, because it costs more than all checks."""
    return requests if constraint is None else tuple(replace(one, constraint=constraint) for one in requests)


def _wanted_slot(id_slot: int | None, num_slots: int) -> int | None:
    """Return the slot that a request asks for; None = any."""
    if id_slot is None or id_slot == -1:
        return None
    if id_slot >= num_slots:
        raise RequestError(
            f"'id_slot' is {id_slot}, but this model has the slots 0 to {num_slots - 1}. Use -1 for any of them.",
            param="id_slot",
        )
    return id_slot
