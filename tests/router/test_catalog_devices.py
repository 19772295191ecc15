"""Devices, sizes, hooks and names with `*` in a models.yaml: what they become, and what is refused."""

from __future__ import annotations

import pytest

from router.catalog import DeviceSpec, Hooks
from tests.support.catalogs import model, parse, problems, wrong


def test_as_many_layers_as_fit_are_offloaded_only_where_it_is_allowed() -> None:
    assert model("gpu_layers: auto").is_partial_allowed
    assert "gpu_layers" not in model("gpu_layers: auto").engine, "all of them, if they fit"
    assert not model("").is_partial_allowed
    assert not model("gpu_layers: all", "defaults: {gpu_layers: auto}\n").is_partial_allowed
    assert model("", "defaults: {gpu_layers: auto}\n").policy().is_partial_allowed


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("CUDA0", ("CUDA0",)),
        ("cpu", ("CPU",)),
        ("[cpu]", ("CPU",)),
        ("[Vulkan1, CUDA0, Vulkan1]", ("Vulkan1", "CUDA0")),
        ("null", ()),
    ],
)
def test_a_device_is_a_name_or_a_list_of_names(text: str, devices: tuple[str, ...]) -> None:
    spec = model(f"device: {text}", "defaults: {device: CUDA7}\n")
    assert spec.devices == devices
    assert "device" not in spec.engine, "placement decides"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("1e9", 10**9),
        ("8GiB", 8 * 2**30),
        ("8 GiB", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("8Gi", 8 * 2**30),
        ("1.5G", 3 * 2**29),
        ("8GB", 8 * 10**9),
        ("500 MB", 500 * 10**6),
        ("512M", 2**29),
        ("2KiB", 2048),
        ("2k", 2048),
        ("1TB", 10**12),
        ("100B", 100),
    ],
)
def test_a_size_is_a_number_of_bytes_or_text_with_a_unit(text: str, size: int) -> None:
    assert model(f"prompt_cache_bytes: {text}").engine["prompt_cache_bytes"] == size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'./free.sh --all \"two words\"'", ("./free.sh", "--all", "two words")),
        ("[./free.sh, '', \"a\\nb\"]", ("./free.sh", "", "a\nb")),
        ("[]", ()),
    ],
)
def test_a_hook_is_a_list_of_words_or_text(text: str, words: tuple[str, ...]) -> None:
    assert model(f"hooks: {{after_unload: {text}}}").hooks.after_unload == words


def test_hooks_merge_with_defaults_turn_by_turn() -> None:
    before = "defaults: {hooks: {before_load: [a], after_load: [b], timeout_s: 5}}\n"
    assert model("hooks: {before_load: [c], after_load: []}", before).hooks == Hooks(("c",), (), (), 5)


def test_devices_are_bounded_or_declared() -> None:
    served = parse(
        "spares: 2\ndevices:\n  CUDA0: {budget: 20GiB, headroom: 500MB, prefer: 1}\n  cpu: {budget: 8G}\n"
        "  fake: {memory: 1GiB}\n  CUDA1: {budget: null}\nmodels: {a: a.gguf}\n"
    )
    assert served.devices == {
        "CUDA0": DeviceSpec("CUDA0", 20 * 2**30, 500 * 10**6, 1),
        "CPU": DeviceSpec("CPU", 8 * 2**30, kind="cpu"),
        "fake": DeviceSpec("fake", memory_bytes=2**30),
        "CUDA1": DeviceSpec("CUDA1"),
    }
    assert served.spares == 2
    assert parse("models: {a: a.gguf}").spares == 0


def test_an_alias_with_a_star_stands_for_every_name_of_its_form_and_is_not_listed() -> None:
    served = parse(
        "models:\n  a: {model: a.gguf, aliases: ['gpt-*']}\n"
        "  b: {model: b.gguf, aliases: {'*': {request: {force: {temperature: 0}}}}}\n"
    )
    assert served.resolve("gpt-5").spec.name == "a"
    assert served.resolve("anything").rules.apply({}) == {"temperature": 0}
    assert served.listed_names() == ["a", "b"]
    assert not any(alias.listed for spec in served.models.values() for alias in spec.aliases.values())


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ("device: []", "device", "at least one device"),
        ("device: [CUDA0, cpu]", "device", "`cpu` means no GPU at all"),
        ("device: [1]", "device", "put it in quotes"),
        ("replicas: 0", "replicas", "must be from 1 to 64"),
        ("replicas: 65", "replicas", "must be from 1 to 64"),
        ("home: 1", "home", "true or false"),
        ("max_wait_s: -1", "max_wait_s", "at least 0"),
        ("hang_timeout_s: soon", "hang_timeout_s", "a number of seconds"),
        ("prompt_cache_bytes: 1 elephant", "prompt_cache_bytes", "text such as `8GiB`"),
        ("hooks: ./run.sh", "hooks", "a map with commands"),
        ("hooks: {before_load: 7}", "hooks.before_load", "must be text"),
        ("hooks: {before_load: [a, 7]}", "hooks.before_load", "put it in quotes"),
        ("hooks: {before_load: ['', a]}", "hooks.before_load", "begin with the program"),
        ("hooks: {before_load: 'a \"b'}", "hooks.before_load", "a quote that is not closed"),
        ("hooks: {before_load: 'a | b'}", "hooks.before_load", "write [sh, -c, 'COMMAND']"),
        ("hooks: {before_load: 'a; b'}", "hooks.before_load", "no shell reads the command"),
        ("hooks: {timeout_s: 0}", "hooks.timeout_s", "more than 0"),
        ("hooks: {on_ready: a}", "hooks.on_ready", "write `after_load`"),
        ("hooks: {afterload: a}", "hooks.afterload", "did you mean `after_load`?"),
    ],
)
def test_a_wrong_value_is_answered_with_what_is_expected(options: str, key: str, words: str) -> None:
    found = wrong(options)
    assert list(found) == [key]
    assert words in found[key]


@pytest.mark.parametrize(
    ("line", "where", "words"),
    [
        ("devices: []", "devices", "must be a map such as `CUDA0: {headroom: 1GiB}`, not a list"),
        ("devices:", "devices", "is empty"),
        ("devices: {CUDA0: 8GiB}", "devices.CUDA0", "must be a map such as `{budget: 8GiB}`, not the text '8GiB'"),
        ("devices: {CUDA0: {budget: lots}}", "devices.CUDA0.budget", "`8GiB` or `500MB`, not the text 'lots'"),
        ("devices: {CUDA0: {budget: -1}}", "devices.CUDA0.budget", "must be from 0"),
        ("devices: {CUDA0: {budget: 1.5}}", "devices.CUDA0.budget", "a number of bytes"),
        ("devices: {CUDA0: {budget: '8'}}", "devices.CUDA0.budget", "remove the quotes"),
        ("devices: {CUDA0: {budget: 9999TiB}}", "devices.CUDA0.budget", "must be from 0 to"),
        ("devices: {CUDA0: {memory: 0}}", "devices.CUDA0.memory", "must be from 1"),
        ("devices: {CUDA0: {vram: 8GiB}}", "devices.CUDA0.vram", "write `memory`"),
        ("devices: {CUDA0: {reserve: 8GiB}}", "devices.CUDA0.reserve", "write `headroom`"),
        ("devices: {CUDA0: {headrom: 8GiB}}", "devices.CUDA0.headrom", "did you mean `headroom`?"),
        ("devices: {CUDA0: {prefer: first}}", "devices.CUDA0.prefer", "a whole number"),
        ("devices: {CUDA0: {kind: gpu}}", "devices.CUDA0.kind", "only for a device that is declared with `memory`"),
        ("devices: {CUDA0: {memory: 1GiB, kind: tpu}}", "devices.CUDA0.kind", "must be one of gpu, cpu"),
        ("devices: {CUDA0: {memory: 1GiB, kind: cpu}}", "devices.CUDA0.kind", "the processor is the device `CPU`"),
        ("devices: {cpu: {memory: 1GiB, kind: gpu}}", "devices.cpu.kind", "the processor is the device `CPU`"),
        ("devices: {CUDA0: {memory: 1GiB, headroom: 1GiB}}", "devices.CUDA0.headroom", "leaves nothing"),
        ("devices: {cpu: {}, CPU: {}}", "devices.CPU", "`CPU` is here twice"),
        ("devices: {'CUDA 0': {}}", "devices.CUDA 0", "spaces"),
    ],
)
def test_a_mistake_among_devices_is_answered_with_its_place(line: str, where: str, words: str) -> None:
    found = problems(f"{line}\nmodels: {{smollm2: a.gguf}}\n")
    assert list(found) == [where]
    assert words in found[where]


def test_two_equal_patterns_are_refused() -> None:
    found = problems(
        "models:\n  a: {model: a.gguf, aliases: ['claude-*']}\n  b: {model: b.gguf, aliases: ['claude-*']}\n"
    )
    assert "already used by models.a.aliases[0] on line 2" in found["models.b.aliases[0]"]


def test_a_pattern_cannot_be_the_default_model_but_a_name_that_it_stands_for_can() -> None:
    text = "models: {a: {model: a.gguf, aliases: ['claude-*']}, b: b.gguf}\ndefault_model: "
    assert "is a pattern" in problems(f"{text}'claude-*'\n")["default_model"]
    assert "no model or alias is named" in problems(f"{text}'claudia'\n")["default_model"]
    assert parse(f"{text}claude-opus\n").resolve(None).spec.name == "a"
