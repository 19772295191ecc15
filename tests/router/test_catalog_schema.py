"""The JSON Schema for editors: up to date, valid, and of one mind with the parser."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

import router.catalog_schema
from router.catalog_keys import MODEL_KEYS
from router.catalog_parser import read_catalog
from router.catalog_schema import make_schema, schema_text

ROUTER = Path(router.catalog_schema.__file__).parent
VALIDATOR = jsonschema.Draft202012Validator(make_schema())


def test_the_committed_schema_is_up_to_date() -> None:
    committed = (ROUTER / "models.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "run: python -m router.catalog_schema > router/models.schema.json"


def test_the_schema_is_a_valid_one_and_describes_every_key() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))
    _, of_files, of_servers = make_schema()["properties"]["models"]["additionalProperties"]["oneOf"]
    options = of_files["properties"] | of_servers["properties"]
    assert set(options) == set(MODEL_KEYS)
    assert all(option["description"] for option in options.values())


GOOD = [
    "models: {a: a.gguf}",
    "models: {a: {model: a.gguf, context: auto, gpu_layers: all, flash_attn: true, kv_tokens: null}}",
    "models: {a: {model: a.gguf, aliases: [x, y]}}",
    "models: {a: {model: a.gguf, aliases: {x: null, y: {listed: false, request: {drop: [stop]}}}}}",
    "models: {a: {model: a.gguf, loras: {x: x.gguf, y: {model: y.gguf, scale: 0.5}}}}",
    "models: {a: {model: a.gguf, loras: {x: x.gguf}, aliases: {b: {lora: x}, c: {lora: {x: -1}}, d: {lora: null}}}}",
    "models: {a: {model: a.gguf, env: {A: b, N: 1}, tensor_split: [3, 1], tags: [t], description: ''}}",
    "defaults: {slots: 2, no_mmap: true}\nlimits: {max_loaded: null}\ndefault_model: a\nmodels: {a: a.gguf}",
    "keys: {k: {env: A_KEY, scopes: [admin]}, l: {file: x, priority: -3}}\nmodels: {a: a.gguf}",
    "spares: 1\ndevices: {CUDA0: {budget: 8GiB, headroom: 0}, x: {memory: 1.5 gb, kind: gpu}}\nmodels: {a: a.gguf}",
    "models: {a: {model: a.gguf, replicas: 2, home: true, device: [A, B], gpu_layers: auto, prompt_cache_bytes: 1M}}",
    "models: {a: {model: a.gguf, hooks: {before_load: a b, after_load: [a, b], timeout_s: 1}, aliases: ['*', 'b*c']}}",
    "models: {a: {url: 'https://host/v1', url_model: x, url_key_env: KEY, context: 4096, aliases: {x: {}}}}",
    "models: {a: {url: 'http://host:8080'}}\ndefaults: {device: cpu, max_wait_s: 3, hang_timeout_s: 0}",
]
BAD = [
    "models: {}",
    "limits: {}",
    "models: {a: {slots: 2}}",
    "models: {a: {model: a.gguf, slots: 0}}",
    "models: {a: {model: a.gguf, slots: null}}",
    "models: {a: {model: a.gguf, slot: 1}}",
    "models: {a: {model: a.gguf, loras: []}}",
    "models: {a: {model: a.gguf, replicas: 65}}",
    "models: {a: {model: a.gguf, url: 'https://host/v1'}}",
    "models: {a: {model: a.gguf, url_key_env: KEY}}",
    "models: {a: {url: 'https://host/v1', slots: 2}}",
    "models: {a: {url: 'ftp://host/v1'}}",
    "models: {a: {url: 'https://user@host/v1'}}",
    "models: {a: {url: 'https://host/v1?x'}}",
    "models: {a: {model: a.gguf, aliases: ['a**']}}",
    "models: {a: {model: a.gguf, device: []}}",
    "models: {a: {model: a.gguf, prompt_cache_bytes: 8X}}",
    "models: {a: {model: a.gguf, prompt_cache_bytes: '8'}}",
    "models: {a: {model: a.gguf, hooks: {before: a}}}",
    "models: {a: {model: a.gguf, hooks: {before_load: 7}}}",
    "devices: {x: {kind: gpu}}\nmodels: {a: a.gguf}",
    "devices: {x: {memory: 0}}\nmodels: {a: a.gguf}",
    "devices: {x: {vram: 1}}\nmodels: {a: a.gguf}",
    "default_model: 'a*'\nmodels: {a: a.gguf}",
    "models: {a: {model: a.gguf, idle_unload_s: 15m}}",
    "models: {a: {model: a.gguf, cache_type_k: q9}}",
    "models: {a: {model: a.gguf, rope_scale: 0}}",
    "models: {a: {model: a.gguf, aliases: ['a b']}}",
    "models: {a: {model: a.gguf, loras: {x: {scale: 1}}}}",
    "models: {a: {model: a.gguf, loras: {x: {model: x.gguf, scale: 101}}}}",
    "models: {a: {model: a.gguf, loras: {x: null}}}",
    "models: {a: {model: a.gguf, aliases: {x: {lora: [y]}}}}",
    "models: {a: {model: a.gguf, aliases: {x: {lora: {y: much}}}}}",
    "models: {a: {model: a.gguf, env: {A-B: c}}}",
    "models: {'a*': a.gguf}",
    "models: [a]",
    "defaults: {model: x.gguf}\nmodels: {a: a.gguf}",
    "limits: {max_load: 1}\nmodels: {a: a.gguf}",
    "keys: {k: secret}\nmodels: {a: a.gguf}",
    "keys: {k: {env: A, file: b}}\nmodels: {a: a.gguf}",
    "keys: {k: {}}\nmodels: {a: a.gguf}",
    "spares: 17\nmodels: {a: a.gguf}",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_schema_accepts_the_parser_accepts(text: str) -> None:
    assert VALIDATOR.is_valid(yaml.safe_load(text))
    assert read_catalog(text, Path("models.yaml")).problems == ()


@pytest.mark.parametrize("text", BAD)
def test_what_the_schema_refuses_the_parser_refuses(text: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(text))
    assert read_catalog(text, Path("models.yaml")).problems
