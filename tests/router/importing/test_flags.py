"""Every option of llama-server becomes what it means here, or a note that says why it does not."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from router.catalog_keys import MODEL_KEYS
from router.catalog_kinds import Choice, Flag, Number, Proportions, Whole
from router.catalog_parser import read_catalog
from router.importing.flag_names import BOOLEAN, IGNORED, SHORT, SYNONYMS, canonical
from router.importing.flags import apply_options, read_words
from router.importing.imported import Imported, ImportedModel
from router.importing.special_flags import SPECIAL
from router.importing.writing import write_catalog
from worker.contract import EngineOptions


def imported(command: str) -> ImportedModel:
    model = ImportedModel("m")
    pairs, others = read_words(shlex.split(command))
    assert others == []
    apply_options(model, pairs)
    return model


def options(command: str) -> dict[str, Any]:
    found = imported(f"-m x.gguf {command}")
    assert found.notes == []
    return {key: value for key, value in found.options.items() if key != "model"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("-c 8192 -np 4", {"context": 2048, "slots": 4}),
        ("-c 8192 -np 1", {"context": 8192, "slots": 1}),
        ("-c 8192", {"context": 8192, "kv_tokens": 8192}),
        ("-c 8192 -np 4 --kv-unified", {"context": 8192, "kv_tokens": 8192, "slots": 4}),
        ("--parallel -1", {}),
        ("-ngl 99", {"gpu_layers": "all"}),
        ("--alias 'a, my model'", {"aliases": {"a": None, "my-model": None}}),
        ("--rope-freq-base 0", {}),
        ("--n-gpu-layers 20", {"gpu_layers": 20}),
        ("--gpu-layers auto", {"gpu_layers": "auto"}),
        ("-t 8 -b 2048 -ub 512", {"threads": 8, "batch_size": 2048, "ubatch_size": 512}),
        ("-t -1", {}),
        ("-fa", {"flash_attn": "on"}),
        ("-fa off -ctk q8_0", {"flash_attn": "off", "cache_type_k": "q8_0"}),
        ("-fa -ngl 99", {"flash_attn": "on", "gpu_layers": "all"}),
        ("--flash-attn auto", {"flash_attn": "auto"}),
        ("-ctk q8_0 -ctv q4_0", {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        ("-dev CUDA0,CUDA1", {"device": ["CUDA0", "CUDA1"]}),
        ("-dev none", {"device": "cpu"}),
        ("-sm row -mg 1 -ts 3,1", {"split_mode": "row", "main_gpu": 1, "tensor_split": [3, 1]}),
        ("--mlock --no-mmap --swa-full", {"mlock": True, "no_mmap": True, "swa_full": True}),
        ("-nkvo", {"no_kv_offload": True}),
        ("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768",
         {"rope_scaling": "yarn", "rope_scale": 4, "yarn_orig_ctx": 32768}),
        ("--pooling mean", {"pooling": "mean"}),
        ("-n 256", {"max_tokens": 256}),
        ("-n -1", {}),
        ("--alias a,b", {"aliases": {"a": None, "b": None}}),
        ("--cache-ram 1024", {"prompt_cache_bytes": "1024MiB"}),
        ("--cache-ram 0", {"prompt_cache_bytes": 0}),
        ("--cache-ram -1", {}),
        ("-md d.gguf --draft-max 16", {"draft_model": "d.gguf", "draft_max": 16}),
        ("--draft 100", {"draft_max": 32}),
        ("--temp 0.5 --top-k 40", {"request": {"defaults": {"temperature": 0.5, "top_k": 40}}}),
        ("-s 42", {"request": {"defaults": {"seed": 42}}}),
        ("-s -1", {}),
        ("--samplers 'top_k;temperature;typical_p'",
         {"request": {"defaults": {"samplers": ["top_k", "temperature", "typ_p"]}}}),
        ("--ignore-eos", {"request": {"defaults": {"ignore_eos": True}}}),
        ("-r User: -r Bot:", {"request": {"defaults": {"stop": ["User:", "Bot:"]}}}),
        ("--reasoning-budget 0", {"request": {"defaults": {"reasoning_budget_tokens": 0}}}),
        ("--reasoning-budget -1", {}),
        ("--reasoning-format none", {"request": {"defaults": {"reasoning_format": "none"}}}),
        ("--chat-template-kwargs '{\"enable_thinking\": false}'",
         {"chat_template_kwargs": {"enable_thinking": False}}),
        ("--chat-template '{{ messages }}'", {"chat_template": "{{ messages }}"}),
        ("--chat-template-file t.jinja", {"chat_template": "t.jinja"}),
        ("--sleep-idle-seconds 300", {"idle_unload_s": 300}),
        ("--jinja --metrics --no-webui --host 0.0.0.0 --port 9 -cb -v --log-file x --no-warmup -to 600", {}),
    ],
)  # fmt: skip
def test_option_is_carried_over(command: str, expected: dict[str, Any]) -> None:
    assert options(command) == expected


@pytest.mark.parametrize(
    ("command", "reference"),
    [
        ("-m models/a.gguf", "models/a.gguf"),
        ("--model=models/a.gguf", "models/a.gguf"),
        ("-hf owner/repo:Q8_0", "hf:owner/repo:Q8_0"),
        ("-hf owner/repo", "hf:owner/repo:Q4_K_M"),
        ("--hf-repo owner/repo --hf-file a.gguf", "hf:owner/repo/a.gguf"),
        ("-mu https://huggingface.co/o/r/resolve/main/a/b.gguf?download=true", "hf:o/r/a/b.gguf"),
        ("-mu https://huggingface.co/o/r/resolve/v2/b.gguf", "hf:o/r/b.gguf@v2"),
    ],
)
def test_model_is_named_in_our_way(command: str, reference: str) -> None:
    assert imported(command).options["model"] == reference


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--mmproj p.gguf", "image input"),
        ("--chat-template chatml", "built-in templates"),
        ("--chat-template-kwargs nonsense", "not a JSON object"),
        ("-ot exps=CPU", "not available"),
        ("--n-cpu-moe 12", "not available"),
        ("--temp warm", "must be a number"),
        ("-t many", "--threads many: must be a number"),
        ("-c 0", "at most 8192"),
        ("--lora a.gguf", "an alias with `lora: a`"),
        ("--lora-scaled a.gguf:0.5", "an alias with `lora: a`"),
        ("-ctk q9", "must be one of"),
        ("--pooling rank", "must be one of"),
        ("--brand-new-flag 3", "not known here"),
        ("--rpc host:1", "not available"),
    ],
)
def test_what_is_not_carried_over_is_said(command: str, words: str) -> None:
    notes = imported(f"-m x.gguf {command}").notes
    assert len(notes) == 1
    assert words in notes[0]


def test_model_that_lies_on_the_web_is_to_be_downloaded() -> None:
    model = imported("-mu https://example.com/a.gguf")
    assert not model.is_usable
    assert "download the file" in model.notes[0]


def test_secrets_are_never_copied() -> None:
    model = imported("-m x.gguf --api-key sk-geheim --hf-token hf_geheim")
    assert len(model.notes) == 2
    assert "geheim" not in write_catalog(Imported("a test", [model]))


def test_adapters_keep_their_scales() -> None:
    model = imported("-m x.gguf --lora a.gguf,b.gguf --lora-scaled c.gguf:0.5")
    assert model.options["loras"] == {"a": "a.gguf", "b": "b.gguf", "c": {"model": "c.gguf", "scale": 0.5}}


def test_every_engine_option_that_both_have_is_carried_over() -> None:
    samples = {Whole: "7", Number: "0.5", Flag: "", Proportions: "1,2"}
    fields = {field.name for field in dataclasses.fields(EngineOptions)}
    for name, key in MODEL_KEYS.items():
        if key.engine not in fields or name in SPECIAL or name in ("prompt_cache_bytes", "prompt_cache_disk_bytes"):
            continue
        value = key.kind.values[0] if isinstance(key.kind, Choice) else samples[type(key.kind)]
        found = options(f"--{name.replace('_', '-')} {value}")
        assert list(found) == [name], name


def test_names_lead_to_options_that_are_known() -> None:
    for name in {*SHORT.values(), *SYNONYMS.values()}:
        end = SYNONYMS.get(name, name)
        model = ImportedModel("m")
        apply_options(model, [("model", "x.gguf"), (end, "1")])
        assert not any("not known here" in note for note in model.notes), name


def test_tables_of_names_do_not_contradict_each_other() -> None:
    assert not IGNORED & SPECIAL.keys()
    assert all(name == canonical(f"--{name}") for name in BOOLEAN), "a name that is never looked up"


def test_numbers_below_zero_are_values_and_not_options() -> None:
    assert read_words(["--seed", "-1", "-ngl", "-1"]) == ([("seed", "-1"), ("gpu_layers", "-1")], [])


def test_whatever_is_carried_over_is_a_valid_catalogue() -> None:
    command = (
        "-m x.gguf -a 'one,two' -c 16384 -np 2 -ngl 99 -fa on -ctk q8_0 -ctv q8_0 -t 8 -b 1024 -ub 512 --temp 0.6"
        " --min-p 0 --top-p 0.95 --repeat-penalty 1.1 --mirostat 2 --mirostat-lr 0.1 --mirostat-ent 5"
        " --xtc-probability 0.1 --dry-multiplier 0.8 --dry-sequence-breaker none --typical 1 --top-nsigma -1"
        " --lora a.gguf --cache-ram 256 --chat-template-kwargs '{}' --reasoning-budget 100 --no-mmap -dev CUDA0"
    )
    text = write_catalog(Imported("a test", [imported(command)]))
    assert [problem.message for problem in read_catalog(text, Path("/x/models.yaml")).problems] == []
