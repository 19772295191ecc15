"""`corral keys`: a new key fits what it says to write into the configuration, and is kept nowhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from router.auth import load_key_ring
from router.settings import RouterSettings
from tests.support.catalogs import parse
from tests.support.command_line import run, work_in


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["my-app", "true", "it's", "1e5", "team:a", "#x", "ünï"])
def test_new_key_fits_the_lines_that_are_printed_with_it(folder: Path, name: str) -> None:
    done = run("keys", "new", "--id", name)
    key, printed = done.stdout.strip(), done.stderr
    rest = printed.splitlines()
    text = printed[printed.index("keys:\n") : printed.index("\n\nOr as")]
    assert yaml.safe_load(text)["keys"].keys() == {name}
    catalog = parse(f"{text}\nmodels: {{a: a.gguf}}\n")
    found = load_key_ring(RouterSettings(), catalog.keys, {}).find({"x-api-key": key})
    assert found is not None
    assert found.key_id == name
    (folder / "keys").write_text(rest[-1] + "\n")
    ring = load_key_ring(RouterSettings(api_key_file=folder / "keys"), (), {})
    from_file = ring.find({"Authorization": f"Bearer {key}"})
    assert from_file is not None
    assert from_file.key_id == "file-1"
    assert done.stdout == f"{key}\n", "whoever reads the output gets the key alone"
    assert key not in printed


def test_new_keys_differ_and_are_long() -> None:
    keys = {run("keys", "new").stdout.split()[0] for _ in range(3)}
    assert len(keys) == 3
    assert all(len(key) >= 43 for key in keys)


def test_new_key_is_printed_as_json() -> None:
    told = json.loads(run("keys", "new", "--json").stdout)
    assert told.keys() == {"id", "key", "sha256"}
    assert told["sha256"] == hashlib.sha256(told["key"].encode()).hexdigest()


def test_name_that_no_key_can_have_is_refused() -> None:
    refused = run("keys", "new", "--id", "my app")
    assert refused.exit_code == 2
    assert "must not contain spaces" in refused.stderr
