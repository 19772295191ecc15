"""From a launch spec to a model that can serve: weights, vocabulary, chat template, and how long each took.

Runs in a thread of its own, beside which the event loop imports the HTTP side. Must not know the process.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worker.contract import EngineOptions, LaunchSpec
from worker.machine import cpu_name

if TYPE_CHECKING:
    from worker.api.speech import Speech
    from worker.chat.marks import Markers
    from worker.chat.template import ChatTemplate
    from worker.engine.calibration import Subject
    from worker.engine.draft_model import LlamaDraftModel
    from worker.engine.llama import EncoderBackend, LlamaBackend
    from worker.engine.llama_vocabulary import LlamaVocabulary
    from worker.engine.prompt_files import PromptFolder

OnProgress = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory, with its first pass done."""

    backend: LlamaBackend | EncoderBackend
    draft_model: LlamaDraftModel | None
    template: ChatTemplate | None
    template_problem: str | None
    template_source: str
    speech: Speech
    """How answers to the template are read."""
    seconds: dict[str, float]
    """By phase: `read`, `warmup`."""
    subject: Subject | None
    """What a calibration would measure; None = nothing is to be measured."""
    prompts: PromptFolder | None = None
    """Finished prompts on the disk; None = none are kept there."""
    identity: str = ""
    """See `ServedModel`."""

    @property
    def device_bytes(self) -> dict[str, dict[str, int]]:
        """What llama.cpp has allocated for both models, by device and kind; empty where it does not tell."""
        total = self.backend.device_bytes
        for device, kinds in ({} if self.draft_model is None else self.draft_model.device_bytes).items():
            mine = total.setdefault(device, {})
            for kind, num_bytes in kinds.items():
                mine[kind] = mine.get(kind, 0) + num_bytes
        return total

    @property
    def private_bytes(self) -> int:
        """How much of that is main memory and no pages of a mapped file."""
        return self.backend.private_bytes + (0 if self.draft_model is None else self.draft_model.private_bytes)


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

    # Making a context is work of llama.cpp alone. The text side, which is work of Python alone, is done beside it.
    with ThreadPoolExecutor(1, thread_name_prefix="text") as beside:
        text: Future[_TextSide] | None = None

        def begin_text_side(vocabulary: LlamaVocabulary) -> Callable[[], object]:
            nonlocal text
            text = beside.submit(_load_text_side, spec, vocabulary)
            return partial(wait, [text])

        backend = load_backend(
            spec.model_path,
            options,
            num_threads=spec.num_threads,
            on_progress=report,
            on_vocabulary=begin_text_side,
        )
        draft_model = _load_draft_model(spec, backend)
        assert text is not None, "the backend has a vocabulary"
        source, template, problem, speech = text.result()
    prompts = _open_prompts(spec, backend)
    loaded_at_s = time.monotonic()
    seconds = {"read": read_at_s - started_at_s, "warmup": loaded_at_s - read_at_s}
    return Loaded(
        backend,
        draft_model,
        template,
        problem,
        source,
        speech,
        {name: round(s, 4) for name, s in seconds.items()},
        subject,
        prompts,
        _identity(spec),
    )


def _identity(spec: LaunchSpec) -> str:
    """Return a digest of all that the text of an answer depends on; "" if a file of the model has gone."""
    from worker.engine.llama_probe import library_version
    from worker.engine.prompt_format import subject_of

    try:
        subject = subject_of(spec.model_path, spec.engine, flash_attn="", library=library_version())
    except OSError:
        return ""
    text_side = [spec.chat_template, spec.chat_template_kwargs, spec.drop_billing_header, spec.max_tokens]
    adapters = [(one.name, one.scale) for one in spec.engine.loras]
    release = importlib.metadata.version("llama-corral")
    return hashlib.sha256(json.dumps([subject, *text_side, adapters, release], sort_keys=True).encode()).hexdigest()[
        :32
    ]


def _open_prompts(spec: LaunchSpec, backend: LlamaBackend | EncoderBackend) -> PromptFolder | None:
    """Return what earlier workers of the model have kept on the disk; where that is not wanted any more it goes."""
    from worker.engine.llama import LlamaBackend
    from worker.engine.llama_probe import library_version
    from worker.engine.prompt_files import PromptFolder, remove_all
    from worker.engine.prompt_format import subject_of

    if spec.prompts_dir is None:
        return None
    root, max_bytes = Path(spec.prompts_dir), spec.engine.prompt_cache_disk_bytes
    if not max_bytes:
        remove_all(root, spec.model)
        return None
    if not isinstance(backend, LlamaBackend) or not backend.can_share or not backend.bytes_per_token:
        return None
    flash_attn, library = backend.context.flash_attn, library_version()
    try:
        subject = subject_of(spec.model_path, spec.engine, flash_attn=flash_attn, library=library)
    except OSError:  # a file that was there a moment ago
        return None
    return PromptFolder.open(root, spec.model, subject, max_bytes)


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


_TextSide = tuple[str, "ChatTemplate | None", str | None, "Speech"]


def _load_text_side(spec: LaunchSpec, vocabulary: LlamaVocabulary) -> _TextSide:
    """Return the template's source, the template, or why it cannot be used, and how answers to it are read.
    The vocabulary's tables are made.

    A broken template harms chat alone, not completions.
    """
    from worker.api.speech import find_markers, speech_of

    _ = vocabulary.eog
    source = spec.chat_template or vocabulary.chat_template or ""
    markers = find_markers(vocabulary.marker)
    template, problem = _compile_template(source, vocabulary, markers) if source else (None, None)
    return source, template, problem, speech_of(source, markers)


def _compile_template(
    source: str, vocabulary: LlamaVocabulary, markers: Markers
) -> tuple[ChatTemplate | None, str | None]:
    from worker.chat.template import ChatTemplate, TemplateError

    try:
        template = ChatTemplate(
            source,
            bos_text=vocabulary.bos_text,
            eos_text=vocabulary.eos_text,
            control_texts=vocabulary.control_texts,
            marker_texts=markers.tokens.keys(),
        )
    except TemplateError as error:
        return None, str(error)
    _ = template.expectations  # found out now, not by the first request
    return template, None
