"""What the worker knows of the machine."""

from __future__ import annotations

import platform
from pathlib import Path

from worker.machine import cpu_name, machine_memory_bytes


def test_processor_has_the_name_that_the_system_tells(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel\t\t: 1\nmodel name\t: Some CPU @ 2.0: GHz\nmodel name\t: Other\n")
    assert cpu_name(info) == "Some CPU @ 2.0: GHz"


def test_processor_without_a_name_is_known_by_its_kind(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t:\n")
    assert cpu_name(info) == cpu_name(tmp_path / "none") == (platform.processor() or platform.machine())


def test_limit_of_a_container_counts_if_it_is_lower(tmp_path: Path) -> None:
    limit, none = tmp_path / "limit", tmp_path / "none"
    limit.write_text("1048576\n")
    none.write_text("max\n")
    assert machine_memory_bytes((none, limit)) == 2**20
    assert machine_memory_bytes((none, tmp_path / "missing")) > 2**20
