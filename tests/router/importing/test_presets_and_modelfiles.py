"""llama-server's presets and Ollama's Modelfiles become a models.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.catalog import Catalog
from router.catalog_parser import read_catalog
from router.importing.imported import Imported, NotImportable
from router.importing.modelfile import read_modelfile
from router.importing.presets import read_presets
from router.importing.writing import write_catalog
from router.yaml_lines import YamlMap, read_yaml

PRESETS = """
version = 1
; for all of them
[*]
c = 8192
n-gpu-layers = all
models-max = 2
port = 9000

[owner/repo:Q8_0]
n-predict = 123
load-on-startup = true
mmap = false

[small one]
model = "/srv/small.gguf"
LLAMA_ARG_CACHE_TYPE_K = q8_0
fa = off
np = 1
temp = 0.3
jinja = true
stop-timeout = 10

[nothing]
ctx-size = 100
"""

MODELFILE = '''
# a comment
FROM ./llama.gguf
PARAMETER num_ctx 4096
PARAMETER num_predict 200
PARAMETER num_gpu 99
PARAMETER temperature 0.7
PARAMETER stop "<|eot_id|>"
PARAMETER stop "User:"
parameter seed 42
PARAMETER num_keep 4
PARAMETER odd 3
PARAMETER top_k many
SYSTEM """You are
a pirate."""
TEMPLATE "{{ .Prompt }}"
ADAPTER ./a.gguf
MESSAGE user hello
LICENSE MIT
RENDERER odd-form
and this is no instruction
'''


def catalog_of(imported: Imported) -> Catalog:
    reading = read_catalog(write_catalog(imported), Path("/srv/models.yaml"))
    assert [problem.describe() for problem in reading.problems] == []
    return reading.catalog


def test_presets_become_models_with_what_is_shared() -> None:
    catalog = catalog_of(read_presets(PRESETS))
    assert list(catalog.models) == ["owner/repo:Q8_0", "small-one"]
    assert catalog.limits.max_loaded == 2
    first, second = catalog.models.values()
    assert (first.source, first.context, first.kv_tokens) == ("hf:owner/repo:Q8_0", 8192, 8192)
    assert (first.max_tokens, first.preload, first.engine["mmap"]) == (123, True, False)
    assert (second.source, second.context, second.slots) == ("/srv/small.gguf", 8192, 1)
    assert (second.engine["cache_type_k"], second.engine["flash_attn"]) == ("q8_0", "off")
    assert second.request.defaults == {"temperature": 0.3}


def test_preset_without_a_model_is_left_out_with_the_reason() -> None:
    imported = read_presets(PRESETS)
    (nothing,) = [model for model in imported.models if model.name == "nothing"]
    assert not nothing.is_usable
    assert "names no model file" in nothing.notes[-1]


def test_address_of_the_server_is_pointed_out() -> None:
    assert any("--port" in note for note in read_presets(PRESETS).notes)


@pytest.mark.parametrize("text", ["", "a = b", "[m]\nthis is no option", "<html>"])
def test_other_texts_are_no_presets(text: str) -> None:
    with pytest.raises(NotImportable):
        read_presets(text)


def test_parameters_of_a_modelfile_become_options_and_request_defaults() -> None:
    spec = catalog_of(read_modelfile(MODELFILE, "pirate")).models["pirate"]
    assert (spec.source, spec.context, spec.max_tokens) == ("./llama.gguf", 4096, 200)
    assert spec.request.defaults == {"temperature": 0.7, "stop": ["<|eot_id|>", "User:"], "seed": 42}
    assert [lora.source for lora in spec.loras] == ["./a.gguf"]


@pytest.mark.parametrize(
    "word", ["SYSTEM", "TEMPLATE", "MESSAGE", "adapter", "RENDERER", "PARAMETER odd", "PARAMETER top_k"]
)
def test_what_a_modelfile_says_beyond_that_is_noted(word: str) -> None:
    (model,) = read_modelfile(MODELFILE, "pirate").models
    assert any(word in note for note in model.notes)
    assert not any(silent in note for note in model.notes for silent in ("LICENSE", "and this"))
    assert not any("pirate." in note for note in model.notes), "the text of several lines is one instruction"


@pytest.mark.parametrize(
    ("source", "reference"),
    [
        ("hf.co/owner/repo:Q8_0", "hf:owner/repo:Q8_0"),
        ("hf.co/owner/repo:latest", "hf:owner/repo:Q4_K_M"),
        ("huggingface.co/owner/repo", "hf:owner/repo:Q4_K_M"),
        ("/usr/share/ollama/blobs/sha256-12", "/usr/share/ollama/blobs/sha256-12"),
        ("llama3.2", None),
    ],
)
def test_model_of_a_modelfile_is_named_in_our_way(source: str, reference: str | None) -> None:
    (model,) = read_modelfile(f"FROM {source}\n", "m").models
    assert model.options.get("model") == reference


def test_text_without_from_is_no_modelfile() -> None:
    with pytest.raises(NotImportable):
        read_modelfile("hello", "m")


def test_two_sections_whose_names_become_the_same_get_names_of_their_own() -> None:
    written = write_catalog(read_presets("[small one]\nmodel = /a.gguf\n[small-one]\nmodel = /b.gguf\n"))
    catalog = read_catalog(written, Path("/etc/models.yaml"))
    assert catalog.problems == ()
    assert list(catalog.catalog.models) == ["small-one", "small-one-2"]
    assert "# it was called 'small-one' like the one above" in written


@pytest.mark.parametrize("name", ["x" * 150, "[" * 150, "yes", "1e9", "- a", "a: b", "é\x07", "{", "''", "#", "null"])
def test_any_name_of_a_section_is_a_key(name: str) -> None:
    written = write_catalog(read_presets(f"[{name}]\nmodel = /a.gguf\n"))
    assert read_yaml(written).problems == ()
    root = read_yaml(written).root
    assert isinstance(root, YamlMap)
    models = root.entries["models"].value
    assert isinstance(models, YamlMap)
    assert list(models.entries) == [name.replace(" ", "-").replace("\x07", "-")]
