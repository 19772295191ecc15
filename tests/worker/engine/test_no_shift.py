"""Positions in the cache are never shifted: a full context ends an answer, on every kind of memory."""

from __future__ import annotations

import ast
from pathlib import Path

import worker.engine

SHIFTS = ("seq_add", "seq_div", "can_shift", "defrag")
"""What llama.cpp's calls that shift are named by; some of them end the process on memories that cannot."""


def test_no_call_of_llama_cpp_that_shifts_positions_is_made() -> None:
    names = set()
    for path in Path(worker.engine.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                    names.add(name)
                case _:
                    pass
    assert "llama_memory_seq_rm" in names, "the names that llama.cpp's calls have here"
    assert not [name for name in names if name.startswith("llama_") and name.endswith(SHIFTS)]
