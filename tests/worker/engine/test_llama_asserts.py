"""Nothing that a request may hold ends the process inside llama.cpp, and `docs/llama-asserts.md` tells why."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.abort_cases import GUARDED, RAW

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "llama-asserts.md"

NEVER_CALLED = re.compile(
    r"llama_(memory_seq_(add|div|keep)|sampler_|get_(logits|embeddings)_ith|state_(load|save)_file|encode$|detokenize$|opt_)"
)
"""Functions that end the process on arguments that are easily wrong."""
NO_FUNCTIONS = {"llama_batch", "llama_pos", "llama_seq_id", "llama_token", "llama_cpp"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("aborts")


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.abort_cases", *arguments]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def held(folder: Path) -> subprocess.CompletedProcess[str]:
    """The child that has tried all guarded cases."""
    return child(str(folder))


@pytest.mark.parametrize("case", [case.__name__ for case in GUARDED])
def test_what_would_end_the_process_is_refused_before(case: str, held: subprocess.CompletedProcess[str]) -> None:
    assert f"held {case}\n" in held.stdout, f"ended with {held.returncode}:\n{held.stdout}\n{held.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in RAW])
def test_without_a_guard_the_process_would_end(case: str, folder: Path) -> None:
    done = child(str(folder), case)
    assert done.returncode < 0, "there is nothing to guard against any more: remove it from the page"


# --- the page ---------------------------------------------------------------------------------------------


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ") and not line.startswith(("| ---", "| In llama.cpp"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


@functools.cache
def named_tests() -> frozenset[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        found.update(re.findall(r"^(?:async )?def (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
    return frozenset(found)


def exists(name: str) -> bool:
    """Whether a dotted name leads to something, through modules and classes."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, part, None)) is not None for part in parts[count:])
    return False


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1][:50])
def test_every_guard_and_every_test_on_the_page_exists(row: list[str]) -> None:
    _, _, guard, test = row
    names = re.findall(r"`((?:worker|router)\.[\w.]+)`", guard)
    assert names or "no such function is called" in guard
    assert [name for name in names if not exists(name)] == []
    tests = re.findall(r"`(\w+)`", test)
    assert tests
    assert [name for name in tests if name not in named_tests()] == []


def test_every_case_that_is_tried_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [case.__name__ for case in (*GUARDED, *RAW) if f"`{case.__name__}`" not in text] == []


@functools.cache
def called() -> frozenset[str]:
    """Return the functions of llama.h that the worker's code names."""
    found: set[str] = set()
    for path in (ROOT / "worker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id="lib"), attr=name):
                    found.add(name)
                case ast.Subscript(slice=ast.Constant(value=str(name))):
                    found.add(name)
    return frozenset(
        name
        for name in found - NO_FUNCTIONS
        if re.fullmatch(r"llama_\w+", name) and not re.search("_(ctypes|callback)$", name)
    ) | {"llama_set_abort_callback"}


def test_every_function_of_llama_cpp_that_a_worker_calls_is_on_the_page_and_no_other() -> None:
    section = (
        PAGE.read_text(encoding="utf-8").partition("## The functions that a worker calls")[2].partition("\n## ")[0]
    )
    assert set(re.findall(r"`(llama_\w+)`", section)) == called()


def test_functions_that_end_the_process_are_never_called() -> None:
    assert [name for name in called() if NEVER_CALLED.match(name)] == []
