"""The rooms' walls: who may import whom, what the pure rooms must not touch, and that the package is whole."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.resources
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("router", "worker")

ROUTER_LAYERS = {
    0: """
        answer_limits api_keys catalog catalog_problems cors device doctor errors events file_names
        folder_names importing missing_names name_patterns references router settings tensor_sums
        version yaml_lines metrics.families metrics.page router.fetch router.fetch.protocol
    """,
    1: """
        account anthropic_models api_page catalog_diff catalog_inner_keys catalog_keys catalog_kinds
        catalog_models catalog_parser catalog_refusals catalog_scalars catalog_schema catalog_sections
        catalog_values catalog_view conversations departures device_facts dialects exits fair_share fit
        fleet fleet_ledger fleet_views footprint footprint_parts greeting host_guard inflation
        keep_alive kept_streams key_guesses key_usage launch lease_errors lifecycle liveness log_tail
        lora_scales messages_reader ollama_names ollama_rules placement prefix_memory prefixes pump
        rate_headers reasons recent_requests reply_reader request_rules resident responses_reader
        resuming retrying shown_states slot_views threads timeline waiting worker_devices worker_totals
        doctor.findings doctor.gpus importing.flag_names importing.flags importing.imported
        importing.llama_swap importing.modelfile importing.presets importing.special_flags
        importing.writing metrics.clients metrics.fleet
    """,
    2: """
        cache_folder cache_survey capabilities catalog_docs catalog_files core_shares cores devices
        early_hangup fleet_log footprint_files footprints gguf_cursor gguf_header ground hooks
        hub_source leases listen lora_files machine_watch metrics model_headers nvml ollama_shapes
        output_reader own_thread package_source probe_process process process_group progress_bar
        quarantine readahead recent_log rule_values runs runtime_dir service_notify sources span_sender
        spares status supervisor tasks tls tracing watcher worker_files worker_run worker_session
        doctor.backend doctor.gpu_signs doctor.installation doctor.machine doctor.ports fetch.__main__
        fetch.hub fetch.package fetch.pip_download metrics.process metrics.registry metrics.workers
    """,
    3: """
        __main__ accepting admin admin_config admin_logs answer api api_document app auth body calls
        candidates checking cli config_editor entrances events_stream json_reply kept_reply kept_runs
        key_check key_limits later listing live_streams llama_props llama_routes logs ollama ollama_pull
        open_connections ops relay reload remote remotes reply responses routes seen serve services
        slot_actions status_routes status_views stopping stream_routes topics ui cli.answer cli.bench
        cli.bench_figures cli.bench_plot cli.bench_shots cli.cache cli.catalog_file cli.chat
        cli.chat_commands cli.chat_input cli.check cli.completing cli.completion cli.config
        cli.config_text cli.conversation cli.devices cli.doctor cli.fit cli.formats cli.import_ cli.keys
        cli.live cli.load cli.logs cli.model_files cli.model_wait cli.output cli.picture cli.prose
        cli.ps cli.ps_rows cli.ps_view cli.pull cli.reload cli.rm cli.serve cli.server cli.shapes
        cli.stream_lines cli.transport cli.version cli.watch doctor.configuration
    """,
}
WORKER_LAYERS = {
    0: """
        contract errors worker chat.errors contract.billing contract.frames contract.launch
        contract.records contract.status engine.batch engine.constraint engine.errors engine.request
        engine.vocabulary worker.api worker.chat worker.engine worker.schemas
    """,
    1: """
        api.answer_wishes api.anthropic_fields api.anthropic_reply api.anthropic_tools
        api.anthropic_turns api.body api.choice api.fields api.format_fields api.formatter
        api.function_fields api.gbnf api.indent_limit api.json_schemas api.lark_text api.line_limit
        api.llama_fields api.llama_prompts api.logit_bias api.logprobs api.loras api.marked_pieces
        api.ollama_fields api.ollama_reply api.openai_fields api.openai_reply api.output_format
        api.ports api.prompt api.refusals api.refused_anthropic api.refused_everywhere api.refused_llama
        api.refused_ollama api.refused_openai api.refused_responses api.responses_events
        api.responses_fields api.responses_items api.resuming api.samplers api.sampling_fields
        api.speech api.stream_options api.text_limits api.texts_or_tokens api.thinking
        api.thought_fields api.tool_fields api.usage api.vectors chat.answer_reader chat.client_text
        chat.control_texts chat.deltas chat.expectations chat.filters chat.limits chat.marks
        chat.messages chat.reasoning chat.render_context chat.sandbox chat.template chat.text_operations
        chat.tool_calls chat.tool_calls.apertus chat.tool_calls.code_calls chat.tool_calls.command_r
        chat.tool_calls.deepseek chat.tool_calls.dsml chat.tool_calls.families chat.tool_calls.family
        chat.tool_calls.functionary chat.tool_calls.gemma chat.tool_calls.generic
        chat.tool_calls.gigachat chat.tool_calls.glm chat.tool_calls.grammar chat.tool_calls.harmony
        chat.tool_calls.hermes chat.tool_calls.json_calls chat.tool_calls.json_lists
        chat.tool_calls.json_text chat.tool_calls.json_values chat.tool_calls.kimi
        chat.tool_calls.kimi_k3 chat.tool_calls.leading chat.tool_calls.lfm2 chat.tool_calls.llama3
        chat.tool_calls.minicpm chat.tool_calls.minimax chat.tool_calls.minimax_m3
        chat.tool_calls.mistral chat.tool_calls.muse chat.tool_calls.parameter_grammar
        chat.tool_calls.parameters chat.tool_calls.pythonic chat.tool_calls.qwen_coder
        chat.tool_calls.scanner chat.tool_calls.sections chat.tool_calls.solar chat.tool_calls.spelling
        chat.tool_calls.string_patterns chat.tool_calls.tagged chat.tool_calls.tools
        chat.tool_calls.value_grammar chat.tool_calls.values chat.tool_turns engine.adapters
        engine.admission engine.budget engine.calibration engine.cell_check engine.cost
        engine.detokenizer engine.drafting engine.embedding_batches engine.kv_ledger engine.kv_store
        engine.ngram engine.occupants engine.pair_prompt engine.pooling engine.prefix_cache
        engine.recovery engine.rule_follower engine.sampler engine.sampling_candidates
        engine.sampling_chance engine.sampling_dry engine.sampling_feedback engine.sampling_infill
        engine.sampling_steps engine.scheduler engine.sequence engine.slot engine.slot_table
        engine.speculation engine.statistics engine.thought_budget schemas.check schemas.closing
        schemas.disjoint schemas.emptiness schemas.expansion schemas.keywords schemas.names
        schemas.patterns schemas.prepare schemas.problems schemas.references schemas.repetitions
        schemas.rewriting schemas.validation schemas.values
    """,
    2: """
        birth bytecode lifeline loading machine memory reporter rights engine.calibration_files
        engine.calibrator engine.core engine.draft_model engine.embedder engine.engine
        engine.engine_limits engine.grammar engine.grammar_trial engine.lane engine.llama
        engine.llama_batch engine.llama_build engine.llama_context engine.llama_faults engine.llama_log
        engine.llama_memory engine.llama_model engine.llama_params engine.llama_plan
        engine.llama_pooling engine.llama_probe engine.llama_vocabulary engine.private_files
        engine.prompt_files engine.prompt_format engine.prompt_store engine.rule_work engine.saved_slots
        engine.slot_files engine.slot_state
    """,
    3: """
        __main__ app life probe process api.answer_plan api.anthropic_messages api.chat_prompt
        api.engine_requests api.fim_prompt api.gate api.llama_completion api.llama_embedding
        api.llama_infill api.llama_job api.llama_reply api.ollama_chat api.ollama_embed
        api.ollama_generate api.openai_chat api.openai_completions api.openai_embeddings
        api.openai_responses api.pooled api.rerank api.served api.slot_actions api.stream api.tokens
    """,
}
"""Words (0), pure decisions (1), effects (2), HTTP and composition (3). A new room is placed here first."""

IMPURE = """
    asyncio threading time os subprocess logging aiohttp psutil prometheus_client llama_cpp
    concurrent multiprocessing random secrets select shutil socket tempfile uuid
"""
"""What the layers 0 and 1 must not import: clocks, chance, other threads, the system, the network."""

FILE_ACCESS = """
    open read_text read_bytes write_text write_bytes is_file is_dir exists iterdir glob rglob unlink mkdir stat
"""
"""Calls that look at the disk."""

MAX_LINES = 400


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    layer: int | None
    tree: ast.Module
    imports: frozenset[str]
    """Everything that is named in an import statement, inside functions and for type checkers alone included."""

    @property
    def own(self) -> frozenset[str]:
        """Modules of this project."""
        return frozenset(name for name in self.imports if name.partition(".")[0] in PACKAGES)

    @property
    def foreign(self) -> frozenset[str]:
        """Top-level names of all other packages."""
        return frozenset(name.partition(".")[0] for name in self.imports) - set(PACKAGES)


def _layers() -> dict[str, int]:
    found: dict[str, int] = {}
    for package, layers in zip(PACKAGES, (ROUTER_LAYERS, WORKER_LAYERS), strict=True):
        for layer, names in layers.items():
            for name in names.split():
                full = name if name.partition(".")[0] == package else f"{package}.{name}"
                assert full not in found, f"{full} is in two layers"
                found[full] = layer
    return found


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> dict[str, Module]:
    layers = _layers()
    paths = {_name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
    found = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[name] = Module(name, path, layers.get(name), tree, frozenset(_imported(tree, name, frozenset(paths))))
    return found


def _imported(tree: ast.Module, importer: str, known: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert level == 0, f"{importer} has a relative import; write the whole name"
                assert module is not None
                for alias in names:
                    whole = f"{module}.{alias.name}"
                    yield whole if whole in known else module


def offences(found: Iterator[str]) -> str:
    """Return one line for each fault; an assertion that this is empty shows them all at once."""
    return "\n".join(sorted(set(found)))


# --- layers -----------------------------------------------------------------------------------------------


def test_every_module_has_its_layer_and_every_name_in_the_table_is_a_module() -> None:
    assert sorted(modules().keys() ^ _layers().keys()) == []


def test_imports_never_go_up() -> None:
    def upward() -> Iterator[str]:
        for module in modules().values():
            for other in module.own:
                if (layer := modules()[other].layer) is not None and module.layer is not None and layer > module.layer:
                    yield f"{module.name} (layer {module.layer}) imports {other} (layer {layer})"

    assert not offences(upward())


def test_words_and_decisions_know_no_clock_no_thread_and_no_system() -> None:
    assert not offences(
        f"{module.name} (layer {module.layer}) imports {name}"
        for module in modules().values()
        if module.layer in (0, 1)
        for name in module.foreign & set(IMPURE.split())
    )


def test_words_and_decisions_do_not_look_at_the_disk() -> None:
    calls = set(FILE_ACCESS.split())

    def looks() -> Iterator[str]:
        for module in modules().values():
            if module.layer not in (0, 1):
                continue
            for node in ast.walk(module.tree):
                match node:
                    case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in calls:
                        yield f"{module.name}, line {node.lineno}: {called}()"

    assert not offences(looks())


def test_imports_make_no_cycle() -> None:
    graph = {name: sorted(module.own - {name}) for name, module in modules().items()}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in graph[name]:
                walk(other, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


# --- the two programs -------------------------------------------------------------------------------------


def test_router_knows_of_the_worker_its_contract_alone() -> None:
    assert not offences(
        f"{module.name} imports {other}"
        for module in modules().values()
        if module.name.startswith("router")
        for other in module.own
        if other.startswith("worker") and other != "worker.contract"
    )


def test_worker_never_imports_the_router() -> None:
    assert not offences(
        f"{module.name} imports {other}"
        for module in modules().values()
        if module.name.startswith("worker")
        for other in module.own
        if other.startswith("router")
    )


def dialect_of(name: str) -> str | None:
    """Return whose dialect a room of the worker's is about; None = it is for all, or no room of a dialect."""
    room = name.removeprefix("worker.api.")
    if room == name:
        return None
    dialect = "responses" if room == "openai_responses" else room.partition("_")[0]
    return dialect if dialect in ("anthropic", "llama", "ollama", "openai", "responses") else None


def test_no_dialect_imports_another() -> None:
    dialects = {name: dialect for name in modules() if (dialect := dialect_of(name)) is not None}
    assert len(set(dialects.values())) == 5
    assert not offences(
        f"{name} imports {other}: what dialects share lies in a room of its own"
        for name, dialect in dialects.items()
        for other in modules()[name].own
        if dialects.get(other, dialect) != dialect
    )


def test_llama_cpp_has_one_door() -> None:
    importers = {module.name for module in modules().values() if "llama_cpp" in module.foreign}
    assert importers
    assert all(re.fullmatch(r"worker\.engine\.llama(_\w+)?", name) for name in importers), importers


def test_the_hub_library_is_used_by_the_fetching_process_alone() -> None:
    importers = {module.name for module in modules().values() if "huggingface_hub" in module.foreign}
    assert importers == {"router.fetch.hub"}


@pytest.mark.parametrize(
    ("program", "never"),
    [
        ("router.serve, router.cli", ("llama_cpp", "huggingface_hub", "numpy", "jinja2", "worker.engine", "openai")),
        ("worker.process, worker.life, worker.app, worker.loading", ("router", "prometheus_client", "huggingface_hub")),
        ("worker.contract", ("llama_cpp", "numpy", "aiohttp", "asyncio", "pydantic")),
    ],
)
def test_a_running_program_never_loads_what_is_not_its_own(program: str, never: tuple[str, ...]) -> None:
    code = f"import sys, {program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert program.partition(",")[0] in loaded
    assert loaded & set(never) == set()


# --- files ------------------------------------------------------------------------------------------------


def sources() -> list[Path]:
    folders = (*PACKAGES, "openapi", "tests", "bench")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_every_module_says_what_it_is_for() -> None:
    assert not offences(
        str(path.relative_to(ROOT))
        for path in sources()
        if path.stat().st_size > 0 and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_no_file_is_longer_than_one_can_keep_in_mind() -> None:
    def too_long() -> Iterator[str]:
        for path in sources():
            num_lines = path.read_text(encoding="utf-8").count("\n")
            if num_lines > MAX_LINES:
                yield f"{path.relative_to(ROOT)} has {num_lines} lines, the limit is {MAX_LINES}"

    assert not offences(too_long())


# --- the installed distribution ---------------------------------------------------------------------------


def test_the_command_is_installed_and_leads_to_the_command_line() -> None:
    distribution = importlib.metadata.distribution("llama-corral")
    commands = {point.name: point for point in distribution.entry_points if point.group == "console_scripts"}
    assert set(commands) == {"corral"}
    assert callable(commands["corral"].load())
    assert distribution.metadata["Requires-Python"] == ">=3.11"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_load_from_the_installed_distribution_with_their_type_marker(package: str) -> None:
    code = f"import {package}, importlib.resources as r; print(r.files({package!r}).joinpath('py.typed').is_file())"
    # -P: as from any other folder, so that nothing is found only because it lies beside.
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_the_schema_for_editors_is_installed() -> None:
    schema = importlib.resources.files("router").joinpath("models.schema.json").read_text(encoding="utf-8")
    assert json.loads(schema)["properties"]["models"]


def test_every_folder_and_every_other_file_of_the_packages_is_shipped() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert tool["packages"]["find"]["include"] == [f"{package}*" for package in PACKAGES]
    for package in PACKAGES:
        folder = ROOT / package
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        for path in files:
            if path.suffix == ".py":
                assert (path.parent / "__init__.py").is_file(), f"{path.parent} is no package"
            else:
                shipped = {found for pattern in tool["package-data"][package] for found in folder.glob(pattern)}
                assert path in shipped, f"{path} is not in pyproject.toml's package-data"
