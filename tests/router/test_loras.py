"""LoRA adapters on the router's side: in models.yaml, as files, in the launch spec, and in what a worker is told."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from router.catalog import AliasSpec, LoraSpec, ModelSpec
from router.catalog_files import check, load_catalog
from router.catalog_parser import read_catalog
from router.checking import describe_models, file_problems
from router.errors import ModelUnavailable
from router.events import WorkerId
from router.fetch.protocol import FetchProgress, SourceError
from router.gguf_header import read_gguf_header
from router.launch import build_launch_spec
from router.lifecycle import WorkerState
from router.lora_files import check_lora, locate_lora
from router.references import Reference
from router.sources import ModelStore
from tests.support.catalogs import parse_catalog
from tests.support.gguf_bytes import F32, LLAMA, STRING, U32, Key, gguf_bytes
from tests.support.http_side import CHAT, http_side, make_catalog, make_spec
from tests.support.stub_world import World, open_world
from worker.contract import Header, LaunchSpec, LoraFile

PATH = Path("/srv/models.yaml")
ADAPTER: list[Key] = [
    ("general.architecture", STRING, "llama"),
    ("general.type", STRING, "adapter"),
    ("adapter.type", STRING, "lora"),
    ("adapter.lora.alpha", F32, 16.0),
]


def with_key(name: str, kind: int, value: object) -> bytes:
    """Return an adapter's file with one key changed."""
    return gguf_bytes([key if key[0] != name else (name, kind, value) for key in ADAPTER])


def without_key(name: str) -> bytes:
    return gguf_bytes([key for key in ADAPTER if key[0] != name])


# --- models.yaml ------------------------------------------------------------------------------------------

GOOD = """\
models:
  m:
    aliases:
      short: {lora: formal}
      own-scale: {lora: sql, listed: false}
      mixed: {lora: {sql: 0.25, formal: -1}}
      plain: {lora: null}
      bare:
    model: ./m.gguf
    loras:
      formal: ./loras/formal.gguf
      sql: {model: 'hf:owner/repo/sql.gguf', scale: 0.5}
"""


def test_adapters_keep_their_order_and_aliases_get_their_scales() -> None:
    spec = parse_catalog(GOOD, PATH).models["m"]
    assert spec.loras == (LoraSpec("formal", "./loras/formal.gguf"), LoraSpec("sql", "hf:owner/repo/sql.gguf", 0.5))
    assert {name: alias.lora for name, alias in spec.aliases.items()} == {
        "short": {"formal": 1.0},
        "own-scale": {"sql": 0.5},
        "mixed": {"sql": 0.25, "formal": -1.0},
        "plain": {},
        "bare": {},
    }
    assert spec.aliases["own-scale"].listed is False


def test_only_an_alias_brings_adapters_along() -> None:
    catalog = parse_catalog(GOOD, PATH)
    assert catalog.resolve("m").lora == {}
    assert catalog.resolve("short").lora == {"formal": 1.0}


def test_other_adapters_are_another_worker_and_other_aliases_are_not() -> None:
    def fingerprint(loras: str, alias: str = "{}") -> str:
        text = f"models: {{m: {{model: a.gguf, loras: {loras}, aliases: {{x: {alias}}}}}}}\n"
        return parse_catalog(text, PATH).models["m"].fingerprint()

    first = fingerprint("{a: a.gguf, b: b.gguf}")
    changed = ["{a: a.gguf}", "{b: b.gguf, a: a.gguf}", "{a: c.gguf, b: b.gguf}", "{a: a.gguf, c: b.gguf}"]
    assert len({first, *map(fingerprint, changed), fingerprint("{a: {model: a.gguf, scale: 2}, b: b.gguf}")}) == 6
    assert fingerprint("{a: a.gguf, b: b.gguf}", "{lora: a}") == first


def problems(options: str) -> dict[tuple[str, int | None], str]:
    """Return the messages by path of keys and line; the model's options begin on line 3."""
    lines = "".join(f"    {line}\n" for line in options.splitlines())
    found = read_catalog(f"models:\n  m:\n{lines}    model: ./m.gguf\n", PATH).problems
    return {(problem.where.removeprefix("models.m."), problem.line): problem.message for problem in found}


@pytest.mark.parametrize(
    ("options", "where", "line", "words"),
    [
        ("loras: ./a.gguf", "loras", 3, "must be a map from name to a file"),
        ("loras: [./a.gguf]", "loras", 3, "not a list"),
        ("loras:\n  a: ./a.gguf\n  b: 5", "loras.b", 5, "a map `{model: FILE.gguf, scale: 1.0}`, not 5"),
        ("loras:\n  a:", "loras.a", 4, "not nothing"),
        ("loras:\n  'a b': ./a.gguf", "loras.a b", 4, "must not contain spaces"),
        ("loras:\n  a: http://x/y.gguf", "loras.a", 4, "URLs are not model references"),
        ("loras:\n  a: {scale: 1}", "loras.a.model", 4, "is missing"),
        ("loras:\n  a:\n    model: ''", "loras.a.model", 5, "must not be empty"),
        ("loras:\n  a:\n    model: a.gguf\n    scale: lots", "loras.a.scale", 6, "must be a number"),
        ("loras:\n  a:\n    model: a.gguf\n    scale: 1000", "loras.a.scale", 6, "at most 100"),
        ("loras:\n  a: {model: a.gguf, weight: 1}", "loras.a.weight", 4, "known here: `model`, `scale`"),
        ("loras:\n  a: {model: a.gguf, scal: 1}", "loras.a.scal", 4, "did you mean `scale`?"),
        ("lora: a.gguf", "lora", 3, "write `loras`"),
        (
            "aliases:\n  x:\n    lora: a",
            "aliases.x.lora",
            5,
            "the model has no adapters: write `loras: {a: FILE.gguf}`",
        ),
        (
            "loras: {a: a.gguf}\naliases:\n  x:\n    lora: b",
            "aliases.x.lora",
            6,
            "no adapter is named `b`; `loras` has `a`",
        ),
        ("aliases:\n  x: {lora: {a: 1, b: 1}}\nloras: {a: a.gguf}", "aliases.x.lora.b", 4, "no adapter is named `b`"),
        ("aliases:\n  x: {lora: {a: much}}\nloras: {a: a.gguf}", "aliases.x.lora.a", 4, "must be a number"),
        ("aliases:\n  x: {lora: [a]}\nloras: {a: a.gguf}", "aliases.x.lora", 4, "the name of an adapter or a map"),
        ("aliases:\n  x: {loras: a}\nloras: {a: a.gguf}", "aliases.x.loras", 4, "write `lora: NAME`"),
        ("loras:\n  a: a.gguf\n  a: b.gguf", "loras.a", 5, "twice"),
    ],
)
def test_mistake_is_told_with_its_line_and_what_to_write(options: str, where: str, line: int, words: str) -> None:
    found = problems(options)
    assert list(found) == [(where, line)]
    assert words in found[where, line]


def test_defaults_cannot_hold_adapters() -> None:
    (problem,) = read_catalog("defaults: {loras: {a: a.gguf}}\nmodels: {m: m.gguf}\n", PATH).problems
    assert (problem.where, "belongs to one model" in problem.message) == ("defaults.loras", True)


# --- files ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").write_bytes(gguf_bytes())
    (tmp_path / "good.gguf").write_bytes(gguf_bytes(ADAPTER))
    return tmp_path


def test_adapter_of_the_models_architecture_passes(folder: Path) -> None:
    base = read_gguf_header(folder / "m.gguf")
    check_lora(LoraSpec("good", "good.gguf"), folder / "good.gguf", base)
    (folder / "good.gguf").write_bytes(without_key("adapter.lora.alpha"))
    check_lora(LoraSpec("good", "good.gguf"), folder / "good.gguf", base)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gguf_bytes(LLAMA), "it is a model, not an adapter"),
        (with_key("general.type", STRING, "model"), "it is a model, not an adapter"),
        (with_key("general.type", STRING, "imatrix"), "of the type 'imatrix'"),
        (with_key("general.type", U32, 5), "of the type 5"),
        (with_key("adapter.type", STRING, "dora"), "only LoRA adapters"),
        (without_key("adapter.type"), "only LoRA adapters"),
        (with_key("adapter.lora.alpha", U32, 16), "not a floating-point number"),
        (with_key("general.architecture", STRING, "qwen2"), "for the architecture qwen2, the model is of llama"),
        (gguf_bytes(ADAPTER)[:60], "truncated"),
        (b"<html>", "it is not a GGUF file"),
    ],
)
def test_file_that_is_no_adapter_of_the_model_is_refused_by_name(folder: Path, content: bytes, words: str) -> None:
    path = folder / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        check_lora(LoraSpec("bad", "bad.gguf"), path, read_gguf_header(folder / "m.gguf"))
    assert str(caught.value).startswith(f"LoRA adapter `bad`: {path}: ")
    assert words in str(caught.value)
    assert caught.value.is_permanent


@pytest.mark.parametrize(
    ("dimensions", "tensor_type"),
    [((4, 4), 26), ((4, 4), 28), ((4, 4, 2), 0), ((4, 4, 1, 3), 0)],
    ids=["whole numbers", "doubles", "a stack", "a stack of stacks"],
)
def test_adapter_that_cannot_be_multiplied_with_is_refused_before_a_worker_dies_of_it(
    folder: Path, dimensions: tuple[int, ...], tensor_type: int
) -> None:
    name = "blk.0.ffn_down.weight.lora_a"
    (folder / "good.gguf").write_bytes(gguf_bytes(ADAPTER, [(name, dimensions, tensor_type, 0)], data=bytes(512)))
    with pytest.raises(SourceError, match=f"its tensor {name} is no matrix"):
        check_lora(LoraSpec("good", "good.gguf"), folder / "good.gguf", read_gguf_header(folder / "m.gguf"))


def test_adapter_of_experts_is_a_stack_of_matrices(folder: Path) -> None:
    tensor = ("blk.0.ffn_down_exps.weight.lora_a", (4, 4, 2), 0, 0)
    (folder / "good.gguf").write_bytes(gguf_bytes(ADAPTER, [tensor], data=bytes(512)))
    check_lora(LoraSpec("good", "good.gguf"), folder / "good.gguf", read_gguf_header(folder / "m.gguf"))


def test_missing_adapter_is_told_by_name(folder: Path) -> None:
    store = ModelStore(folder / "cache")
    assert locate_lora(store, LoraSpec("good", "good.gguf"), folder) == folder / "good.gguf"
    assert locate_lora(store, LoraSpec("far", "hf:owner/repo/x.gguf"), folder) is None
    with pytest.raises(SourceError, match=r"LoRA adapter `gone`: .*gone\.gguf does not exist"):
        locate_lora(store, LoraSpec("gone", "gone.gguf"), folder)


def test_model_with_a_missing_adapter_is_unavailable_and_the_line_is_told(folder: Path) -> None:
    path = folder / "models.yaml"
    path.write_text("models:\n  m:\n    model: ./m.gguf\n    loras:\n      good: good.gguf\n      gone: ./gone.gguf\n")
    locate = ModelStore(folder / "cache").locate
    (problem,) = check(path, locate)
    assert (problem.where, problem.line) == ("models.m.loras.gone", 6)
    assert "LoRA adapter `gone`: " in problem.message
    assert load_catalog(path, locate).models["m"].problem == problem.message


def test_check_looks_into_adapters_and_shows_their_names(folder: Path) -> None:
    path = folder / "models.yaml"
    store = ModelStore(folder / "cache")
    path.write_text("models: {m: {model: ./m.gguf, loras: {good: good.gguf, far: 'hf:owner/repo/x.gguf'}}}\n")
    catalog = load_catalog(path, store.locate)
    assert file_problems(catalog, store, must_be_here=False) == []
    assert describe_models(catalog, store)[0].endswith("LoRA adapters good, far")
    (offline,) = file_problems(catalog, store, must_be_here=True)
    assert (offline.where, "--offline" in offline.message) == ("models.m.loras.far", True)
    (folder / "good.gguf").write_bytes(gguf_bytes())
    (wrong,) = file_problems(catalog, store, must_be_here=False)
    assert (wrong.where, "it is a model" in wrong.message) == ("models.m.loras.good", True)


# --- what a worker gets -----------------------------------------------------------------------------------


def test_launch_spec_names_the_files_in_order() -> None:
    loras = (LoraSpec("formal", "x"), LoraSpec("sql", "y", 0.5))
    spec = ModelSpec("m", "./m.gguf", Path("/models"), loras=loras)
    launch = build_launch_spec(
        spec,
        WorkerId("m", 0, 1),
        model_path=Path("/models/m.gguf"),
        lora_paths=[Path("/cache/x.gguf"), Path("/cache/y.gguf")],
        socket_path=Path("/run/w.sock"),
        trained_context=512,
        num_threads=1,
    )
    assert LaunchSpec.from_line(launch.to_line()).engine.loras == (
        LoraFile("formal", "/cache/x.gguf", 1.0),
        LoraFile("sql", "/cache/y.gguf", 0.5),
    )


async def test_worker_is_told_the_adapters_of_the_alias_and_never_those_of_a_clients_header() -> None:
    aliases = {"förmal": AliasSpec("förmal", lora={"förmal": 0.5, 'a"b': 1.0}), "plain": AliasSpec("plain")}
    spec = make_spec("m", aliases=aliases, loras=(LoraSpec("förmal", "x"), LoraSpec('a"b', "y")))
    forged = {Header.LORA: urllib.parse.quote('[{"name": "förmal"}]')}
    async with http_side(make_catalog(spec)) as side:
        for name in ("förmal", "plain", "m"):
            body = {"model": name, "messages": []}
            assert (await side.client.post(CHAT, json=body, headers=forged)).status == 200
        told = [request.headers.get(Header.LORA) for request in side.worker.received]
    assert told[1:] == [None, None]
    assert told[0] is not None
    assert told[0].isascii()
    assert json.loads(urllib.parse.unquote(told[0])) == [
        {"name": "förmal", "scale": 0.5},
        {"name": 'a"b', "scale": 1.0},
    ]


class Shelf:
    """A store in which some files must be fetched, which succeeds or not."""

    def __init__(self, folder: Path, *, far: dict[str, SourceError | None]) -> None:
        self.folder = folder
        self.far = far
        self.fetched: list[str] = []

    def locate(self, reference: Reference, base_dir: Path) -> Path | None:
        return None if str(reference) in self.far else base_dir / str(reference)

    def may_download(self, reference: Reference) -> bool:
        return True

    async def fetch(self, reference: Reference, base_dir: Path, on_progress: Callable[[FetchProgress], None]) -> Path:
        self.fetched.append(str(reference))
        await asyncio.sleep(0)
        if (error := self.far[str(reference)]) is not None:
            raise error
        return self.folder / str(reference)


@pytest.fixture
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with open_world(folder, monkeypatch) as world:
        yield world


def with_adapters(world: World, *names: str) -> Any:
    return world.model(loras=tuple(LoraSpec(name, f"{name}.gguf") for name in names))


async def test_adapters_are_fetched_before_the_worker_starts(world: World) -> None:
    (world.path / "far.gguf").write_bytes(gguf_bytes(ADAPTER))
    model = with_adapters(world, "good", "far")
    store = Shelf(world.path, far={"far.gguf": None})
    supervisor = await world.serve(model, store=store)
    async with supervisor.lease(model):
        (started,) = world.events("started")
    assert store.fetched == ["far.gguf"]
    assert started["spec"]["engine"]["loras"] == [
        {"name": "good", "path": str(world.path / "good.gguf"), "scale": 1.0},
        {"name": "far", "path": str(world.path / "far.gguf"), "scale": 1.0},
    ]


async def test_adapter_that_cannot_be_fetched_is_named_and_tried_again(world: World) -> None:
    model = with_adapters(world, "far")
    store = Shelf(world.path, far={"far.gguf": SourceError("the network is down")})
    supervisor = await world.serve(model, store=store)
    with pytest.raises(ModelUnavailable, match="LoRA adapter `far`: the network is down"):
        await supervisor.lease(model).__aenter__()
    assert supervisor.snapshot().models["a"].state is WorkerState.BACKOFF
    assert world.pids() == []


async def test_adapter_that_fits_no_model_is_named_and_not_tried_again(world: World) -> None:
    (world.path / "bad.gguf").write_bytes(with_key("general.architecture", STRING, "qwen2"))
    model = with_adapters(world, "good", "bad")
    supervisor = await world.serve(model)
    with pytest.raises(ModelUnavailable, match=r"LoRA adapter `bad`: .*architecture qwen2"):
        await supervisor.lease(model).__aenter__()
    assert supervisor.snapshot().models["a"].state is WorkerState.FAILED
    assert world.pids() == []
