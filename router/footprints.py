"""What each model needs of memory, as well as it is known: measured, planned by llama.cpp, or estimated.

Owns asking and remembering, across restarts too. Must not decide what is believed (`footprint_parts.py` does), nor
load llama.cpp: it is asked in a process of its own, one question at a time, and none is asked while a load runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from router.catalog import ModelSpec
from router.device import Footprint
from router.events import WorkerId
from router.fetch.protocol import SourceError
from router.file_names import all_parts
from router.footprint import footprint_of, output_bytes
from router.footprint_files import FootprintFiles, digest
from router.footprint_parts import Knowledge, planned_on_cpu, planned_on_gpu, with_measured
from router.gguf_header import GgufError, GgufHeader, read_gguf_header, read_tensor_sums
from router.launch import build_launch_spec, capped_context
from router.lora_files import locate_lora
from router.model_headers import Locator, ModelHeaders
from router.probe_process import ProbeFailed, ask_probe
from router.references import parse_reference
from router.tensor_sums import TensorSums
from worker.contract import EngineOptions, WorkerStatus

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S: Final = 120.0
_WAIT_S = 0.25
"""Between two looks whether loads are over."""

_SMALLER_CONTEXTS: Final = (4096, 2048, 1024, 512)
"""What an automatic context is cut to, one after another, until a device can hold the model."""

CouldFit = Callable[[ModelSpec, Footprint], bool]
OnKnown = Callable[[str, Footprint, float | None], None]
"""Called with a model's name, what it needs and how long it loads, whenever more is known."""

IsBusy = Callable[[], bool]
"""Whether somebody waits for a load."""

_WITHOUT_BEARING = {
    *("device", "gpu_layers", "main_gpu", "split_mode", "tensor_split"),  # a footprint tells both ends of these
    *(
        "threads",
        "itl_target_ms",
        "prompt_cache_bytes",
        "prompt_cache_disk_bytes",
        "mmap",
        "mlock",
        "check_tensors",
        "loras",
    ),
}
"""Engine options that change nothing of a footprint."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a model that are here, and who they are."""

    path: Path
    draft_path: Path | None
    lora_paths: tuple[Path, ...]
    lora_bytes: int
    identity: tuple[tuple[str, int, int], ...]
    """Of each file: its real path, its size, when it was changed."""


@dataclass(slots=True)
class _Entry:
    """One model with its options, as the catalogue has it now."""

    spec: ModelSpec
    key: str = ""
    """Of what is kept on the disk; "" = its files have not been seen yet."""
    files: _Files | None = None
    options: EngineOptions | None = None
    header: GgufHeader | None = None
    known: Knowledge = dataclasses.field(default_factory=Knowledge)
    context_cap: int | None = None
    """Tokens to which an automatic context had to be cut so that the model fits."""
    is_probed: bool = False
    """Asked in vain is asked, too."""
    is_probed_on_gpu: bool = False


class Footprints:
    """See the module. Everything is called from the event loop."""

    def __init__(
        self,
        folder: Path | None,
        store: Locator,
        headers: ModelHeaders,
        on_known: OnKnown,
        *,
        environ: Mapping[str, str] = os.environ,
        command: Sequence[str] | None = None,
        timeout_s: float = PROBE_TIMEOUT_S,
        could_fit: CouldFit = lambda spec, footprint: True,
        may_probe: bool = True,
        is_busy: IsBusy = lambda: False,
    ) -> None:
        """`folder`: where it is remembered; None = not at all. `command`: of the probe's process, for tests.
        `could_fit` tells whether a device could ever hold a model; an automatic context is chosen so that one can.
        llama.cpp is not asked while `is_busy`.
        """
        self._disk = FootprintFiles(folder)
        self._store = store
        self._headers = headers
        self._on_known = on_known
        self._environ = environ
        self._command = command
        self._timeout_s = timeout_s
        self._could_fit = could_fit
        self._may_probe = may_probe
        self._is_busy = is_busy
        self._library = library_version(environ)
        self._entries: dict[str, _Entry] = {}
        self._looking = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._num_surveys = 0
        self._writes: set[asyncio.Task[None]] = set()

    # --- what is known ---

    def of(self, spec: ModelSpec) -> Footprint | None:
        """Return the best that is known; None while nothing is, as of a file that has not been fetched."""
        entry = self._entry(spec)
        return None if entry is None else entry.known.footprint

    def load_s(self, spec: ModelSpec) -> float | None:
        """Return how long the last load took in all; None if there was none."""
        entry = self._entry(spec)
        return None if entry is None else entry.known.load_s

    def context_cap(self, spec: ModelSpec) -> int | None:
        """Return the most tokens that an automatic context may have so that the model fits; None = no cap is needed."""
        entry = self._entry(spec)
        return None if entry is None else entry.context_cap

    # --- learning more ---

    def forget_fits(self) -> None:
        """The devices are others: what was chosen to fit them is chosen anew at the next look."""
        self._entries = {name: entry for name, entry in self._entries.items() if entry.spec.context is not None}

    async def survey(self, specs: Iterable[ModelSpec], gpu: str | None = None) -> None:
        """Know what can be known of all these models, and forget others.

        First what stands in headers and on the disk, then llama.cpp's plans of those that have none yet, one after
        another. `gpu`: llama.cpp's name of a GPU to plan on as well. An earlier survey that still runs ends there.
        """
        self._num_surveys += 1
        number = self._num_surveys
        chosen = [spec for spec in specs if spec.remote is None]
        names = {spec.name for spec in chosen}
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}
        for step in (self._look_if_new, lambda spec: self._probe(spec, gpu))[: 1 + self._may_probe]:
            for spec in chosen:
                if number != self._num_surveys:
                    return
                await step(spec)

    async def size(self, spec: ModelSpec, path: Path) -> Footprint | None:
        """Return what a worker of `path`, the model's file, needs: measured or planned before, else by its header.

        For the moment before a start: it reads a header at most. None where even that cannot be had.
        """
        await self._look(spec, path)
        return self.of(spec)

    def learn(self, spec: ModelSpec, path: Path, status: WorkerStatus) -> Footprint | None:
        """Believe what a worker tells that has just become ready, from now on; it is remembered in the background."""
        entry = self._entry(spec)
        if entry is None:
            entry = self._entries[spec.name] = _Entry(spec)
        before = entry.known
        outputs = 0 if entry.header is None or entry.options is None else output_bytes(entry.header, entry.options)
        entry.known = with_measured(before, status, outputs)
        if entry.known != before:
            self._in_background(self._keep(entry, path))
            self._tell(entry)
        return entry.known.footprint

    async def close(self) -> None:
        """Everything that was learnt is on the disk."""
        while self._writes:
            await asyncio.wait(self._writes)

    def _entry(self, spec: ModelSpec) -> _Entry | None:
        """Return the entry of exactly this model with these options."""
        entry = self._entries.get(spec.name)
        if entry is None or entry.spec is spec:
            return entry
        if _what_matters(entry.spec) != _what_matters(spec):
            return None
        entry.spec = spec  # the next question is answered at a glance
        return entry

    async def _look_if_new(self, spec: ModelSpec) -> None:
        """Look at the model unless its files have been seen: of a file that was replaced, `spec` is another one."""
        entry = self._entry(spec)
        if entry is None or entry.files is None:
            await self._look(spec)

    async def _look(self, spec: ModelSpec, path: Path | None = None) -> None:
        """Know what the model's header and the disk say, unless that is known of the same files already.

        One after another: of two looks at a model whose options have changed, the later one is right.
        """
        async with self._looking:
            await self._look_now(spec, path)

    async def _look_now(self, spec: ModelSpec, path: Path | None) -> None:
        try:
            files = await asyncio.to_thread(self._locate, spec, path)
            if files is None:
                return
            entry = self._entry(spec)
            if entry is None or entry.files is None or entry.files.identity != files.identity:
                entry = self._entries[spec.name] = await self._examine(spec, files)
                self._tell(entry)
        except (SourceError, GgufError, ValueError, OSError) as error:
            # The start of a worker meets the same error and reports it where somebody waits for it.
            logger.debug("%s: what it needs is not known: %s", spec.name, error)

    def _locate(self, spec: ModelSpec, path: Path | None) -> _Files | None:
        """Return the model's files; None if it must be fetched first. Looks at the disk."""
        if path is None:
            path = self._store.locate(parse_reference(spec.source), spec.base_dir)
        if path is None:
            return None
        draft = None
        if spec.draft_source is not None:
            draft = self._store.locate(parse_reference(spec.draft_source), spec.base_dir)
        loras = tuple(
            found for lora in spec.loras if (found := locate_lora(self._store, lora, spec.base_dir)) is not None
        )
        parts = [path.with_name(name) for name in all_parts(path.name)]
        everything = [*parts, *loras, *([] if draft is None else [draft])]
        identity = tuple(_identity(file) for file in everything)
        lora_bytes = sum(file.stat().st_size for file in loras)
        return _Files(path, draft, loras, lora_bytes, identity)

    async def _examine(self, spec: ModelSpec, files: _Files) -> _Entry:
        """Return what is known of these files with these options. Raises: GgufError, OSError."""
        header = await self._headers.read(spec, files.path)
        options, context_cap = await asyncio.to_thread(self._choose_options, spec, files, header)
        key = digest([files.identity, _bearing(options), self._library, platform.node()])
        estimate = await asyncio.to_thread(_estimate, files, header, options)
        known = await asyncio.to_thread(self._disk.read, key)
        return _Entry(spec, key, files, options, header, replace(known, estimate=estimate), context_cap=context_cap)

    def _choose_options(self, spec: ModelSpec, files: _Files, header: GgufHeader) -> tuple[EngineOptions, int | None]:
        """Return the engine's options, and how far an automatic context had to be cut. Raises: GgufError."""
        options = _options(spec, files, header, None)
        if spec.context is not None or self._could_fit(spec, _estimate(files, header, options)):
            return options, None
        for cap in _SMALLER_CONTEXTS:
            smaller = _options(spec, files, header, cap)
            if smaller.context < options.context and self._could_fit(spec, _estimate(files, header, smaller)):
                return smaller, cap
        return options, None  # it never fits, and is refused with the needs of what was asked for

    async def _probe(self, spec: ModelSpec, gpu: str | None) -> None:
        """Have llama.cpp's plan of the model, unless it is known or was asked for in vain."""
        async with self._probing:
            while self._is_busy():  # noqa: ASYNC110 - no event tells of the end of other workers' loads
                await asyncio.sleep(_WAIT_S)
            entry = self._entry(spec)
            if entry is None or entry.files is None or entry.options is None:
                return
            known = entry.known
            is_wanted = known.planned_cpu is None and known.measured_cpu is None and not entry.is_probed
            is_wanted_on_gpu = gpu is not None and known.planned_gpu is None and not entry.is_probed_on_gpu
            if not is_wanted and not is_wanted_on_gpu:
                return
            found = await asyncio.to_thread(self._disk.read, entry.key)  # another model may have asked for the same
            if found.planned_cpu is not None and (gpu is None or found.planned_gpu is not None):
                entry.known = replace(known, planned_cpu=found.planned_cpu, planned_gpu=found.planned_gpu)
                self._tell(entry)
                return
            entry.is_probed, entry.is_probed_on_gpu = True, entry.is_probed_on_gpu or gpu is not None
            try:
                answer = await self._ask(entry.files, entry.options, gpu if is_wanted_on_gpu else None)
                cpu = planned_on_cpu(answer.get("cpu"), entry.files.lora_bytes)
                on_gpu = known.planned_gpu
                if is_wanted_on_gpu:
                    on_gpu = planned_on_gpu(answer.get("gpu"), entry.files.lora_bytes)
            except (ProbeFailed, ValueError) as error:
                logger.warning("%s: llama.cpp does not say what it needs, so it is estimated: %s", spec.name, error)
                return
            except asyncio.CancelledError:
                entry.is_probed = entry.is_probed_on_gpu = False
                raise  # else: meanwhile a worker may have been measured
            entry.known = replace(entry.known, planned_cpu=cpu, planned_gpu=on_gpu)
            self._tell(entry)
            await asyncio.to_thread(self._disk.write, entry.key, entry.known, spec.name)

    async def _ask(self, files: _Files, options: EngineOptions, gpu: str | None) -> dict[str, Any]:
        question = {
            "ask": "footprint",
            "model_path": str(files.path),
            "draft_model_path": None if files.draft_path is None else str(files.draft_path),
            "engine": dataclasses.asdict(options),
            "gpu": gpu,
        }
        return await ask_probe(question, environ=self._environ, timeout_s=self._timeout_s, command=self._command)

    async def _keep(self, entry: _Entry, path: Path) -> None:
        """Have what was learnt on the disk."""
        if not entry.key:
            learnt = entry.known
            await self._look(entry.spec, path)
            found = self._entries.get(entry.spec.name)
            if found is None or not found.key:
                return
            found.known = replace(
                found.known, measured_cpu=learnt.measured_cpu, measured_gpu=learnt.measured_gpu, load_s=learnt.load_s
            )
            entry = found
        await asyncio.to_thread(self._disk.write, entry.key, entry.known, entry.spec.name)

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    def _tell(self, entry: _Entry) -> None:
        footprint = entry.known.footprint
        is_current = self._entries.get(entry.spec.name) is entry  # its options may have changed meanwhile
        if footprint is not None and is_current:
            self._on_known(entry.spec.name, footprint, entry.known.load_s)


def library_version(environ: Mapping[str, str]) -> str:
    """Return which llama.cpp workers use, as far as that can be told without loading it."""
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return f"{version} {environ.get('LLAMA_CPP_LIB_PATH', '')}".strip()


def _identity(path: Path) -> tuple[str, int, int]:
    """Return what tells a file from others and from later ones of its name. Raises: OSError."""
    real = path.resolve()
    status = real.stat()
    return str(real), status.st_size, status.st_mtime_ns


def _what_matters(spec: ModelSpec) -> tuple[object, ...]:
    """Return all of a model's configuration that its footprint depends on."""
    return (
        *(spec.source, spec.base_dir, spec.file_marks, spec.context, spec.slots, spec.kv_tokens, spec.draft_source),
        [lora.source for lora in spec.loras],
        {name: value for name, value in spec.engine.items() if name not in _WITHOUT_BEARING},
    )


def _bearing(options: EngineOptions) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(options).items() if name not in _WITHOUT_BEARING}


def _options(spec: ModelSpec, files: _Files, header: GgufHeader, context_cap: int | None) -> EngineOptions:
    """Return the engine's options, exactly as a worker gets them."""
    loras = files.lora_paths if len(files.lora_paths) == len(spec.loras) else ()
    launch = build_launch_spec(
        spec if loras or not spec.loras else replace(spec, loras=()),
        WorkerId(spec.name, 0, 0),
        model_path=files.path,
        lora_paths=loras,
        socket_path=Path(),
        trained_context=capped_context(header.trained_context, context_cap),
        num_threads=1,
    )
    return launch.engine


def _estimate(files: _Files, header: GgufHeader, options: EngineOptions) -> Footprint:
    """Return the arithmetic on the headers of all files. Raises: GgufError."""
    tensors: TensorSums = header.tensors
    for name in all_parts(files.path.name):
        if (part := files.path.with_name(name)) != files.path:
            tensors = tensors + read_tensor_sums(part)
    draft = None if files.draft_path is None else read_gguf_header(files.draft_path)
    return footprint_of(header, options, tensors=tensors, draft=draft, lora_bytes=files.lora_bytes)
