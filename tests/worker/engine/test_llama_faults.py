"""Builds that would kill the process are told by their compiler's mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.engine.llama_faults import has_broken_amx

WITH_AMX = "CPU : AVX512 = 1 | AMX_INT8 = 1 | OPENMP = 1 |"


@pytest.mark.parametrize(
    ("comment", "broken"),
    [
        (b"GCC: (Debian 12.2.0-14) 12.2.0", True),
        (b"GCC: (Ubuntu 11.4.0-1ubuntu1) 11.4.0", True),
        (b"GCC: (GNU) 12.4.0", False),
        (b"GCC: (Ubuntu 13.2.0-23ubuntu4) 13.2.0", True),
        (b"GCC: (Ubuntu 13.3.0-6ubuntu2) 13.3.0", False),
        (b"GCC: (GNU) 14.2.1 20240801", False),
        (b"GCC: (Debian 12.2.0-14) 12.2.0\0Debian clang version 16.0.6", False),
        (b"", False),
    ],
)
def test_amx_is_kept_off_exactly_for_compilers_that_break_it(tmp_path: Path, comment: bytes, broken: bool) -> None:
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"\x7fELF...\0" + comment + b"\0...")
    assert has_broken_amx(WITH_AMX, library) is broken


def test_a_build_without_amx_is_never_suspected(tmp_path: Path) -> None:
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"GCC: (Debian 12.2.0-14) 12.2.0\0")
    assert not has_broken_amx("CPU : AVX2 = 1 |", library)


def test_a_library_that_cannot_be_read_is_not_suspected(tmp_path: Path) -> None:
    assert not has_broken_amx(WITH_AMX, tmp_path / "absent.so")
