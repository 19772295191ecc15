"""From a launch spec to a model that can serve: weights, vocabulary, chat template, and how long each took.

Runs in a thread of its own, beside which the event loop imports the HTTP side. Must not know the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from worker.contract import EngineOptions, LaunchSpec
from worker.machine import cpu_name

if TYPE_CHECKING:
    from worker.chat.template import ChatTemplate
    from worker.engine.calibration import Subject
    from worker.engine.draft_model import LlamaDraftModel
    from worker.engine.llama import EncoderBackend, LlamaBackend

OnProgress = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory, with its first pass done."""

    backend: LlamaBackend | EncoderBackend
    draft_model: LlamaDraftModel | None
    template: ChatTemplate | None
    template_problem: str | None
    template_source: str
    seconds: dict[str, float]
    """By phase: `read`, `warmup`."""
    subject: Subject | None
    """What a calibration would measure; None = nothing is to be measured."""


def load(spec: LaunchSpec, on_progress: OnProgress) -> Loaded:
    """Return the model of `spec`. `on_progress` gets the fraction read and returns False to give up.

    Raises: LoadFailed with llama.cpp's own reason; MemoryError.
    """
    from worker.engine.llama import load_backend

    subject = _subject(spec)
    options = _calibrated(spec, subject)
    started_at_s = read_at_s = time.monotonic()

    def report(fraction: float) -> bool:
        nonlocal read_at_s
        read_at_s = time.monotonic()
        return on_progress(fraction)

    backend = load_backend(spec.model_path, options, num_threads=spec.num_threads, on_progress=report)
    draft_model = _load_draft_model(spec, backend)
    loaded_at_s = time.monotonic()
    seconds = {"read": read_at_s - started_at_s, "warmup": loaded_at_s - read_at_s}
    source = spec.chat_template or backend.vocabulary.chat_template or ""
    template, problem = _compile_template(source, backend) if source else (None, None)
    return Loaded(
        backend, draft_model, template, problem, source, {name: round(s, 4) for name, s in seconds.items()}, subject
    )


def _load_draft_model(spec: LaunchSpec, backend: LlamaBackend | EncoderBackend) -> LlamaDraftModel | None:
    """Return the model that drafts, if there is one. Raises: LoadFailed that names it."""
    from worker.engine.draft_model import LlamaDraftModel
    from worker.engine.errors import BadModel, LoadFailed

    if spec.draft_model_path is None:
        return None
    if not backend.facts.can_generate:
        raise BadModel("`draft_model` is set, but this model makes embeddings and generates nothing")
    try:
        return LlamaDraftModel.load(
            spec.draft_model_path, spec.engine, backend.vocabulary, num_threads=spec.num_threads
        )
    except LoadFailed as error:
        raise type(error)(f"{spec.draft_model_path}: {error}") from None


def _subject(spec: LaunchSpec) -> Subject | None:
    """Return what a calibration of the model would measure: only passes on a CPU are. Raises: BadModel."""
    from worker.engine.calibration_files import subject_of
    from worker.engine.llama_params import choose_devices
    from worker.engine.llama_probe import library_version

    if spec.calibration_dir is None or choose_devices(spec.engine).uses_gpu:
        return None
    library, cpu = library_version(), cpu_name()
    try:
        return subject_of(spec.model_path, spec.engine, library=library, cpu=cpu, num_threads=spec.num_threads)
    except OSError:  # llama.cpp will say what is wrong with the file
        return None


def _calibrated(spec: LaunchSpec, subject: Subject | None) -> EngineOptions:
    """Return the engine's options with what an earlier calibration has found to be faster."""
    from worker.engine.calibration import choose_flash_attn
    from worker.engine.calibration_files import read_calibration

    if subject is None or spec.calibration_dir is None:
        return spec.engine
    known = read_calibration(Path(spec.calibration_dir), subject)
    return spec.engine if known is None else replace(spec.engine, flash_attn=choose_flash_attn(spec.engine, known))


def _compile_template(source: str, backend: LlamaBackend | EncoderBackend) -> tuple[ChatTemplate | None, str | None]:
    """Return the template, or why it cannot be used: a broken one harms chat alone, not completions."""
    from worker.chat.template import ChatTemplate, TemplateError

    vocabulary = backend.vocabulary
    try:
        template = ChatTemplate(
            source,
            bos_text=vocabulary.bos_text,
            eos_text=vocabulary.eos_text,
            control_texts=vocabulary.control_texts,
        )
    except TemplateError as error:
        return None, str(error)
    _ = template.expectations  # found out now, not by the first request
    return template, None
