"""The cores of a container count, not those of its host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.cores import count_cores, cpu_quota


@pytest.mark.parametrize(
    ("text", "quota"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("junk", None)]
)
def test_quota_of_a_container_is_read(tmp_path: Path, text: str, quota: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(("quota_us", "quota"), [("200000", 2.0), ("-1", None)])
def test_quota_of_an_old_container_is_read(tmp_path: Path, quota_us: str, quota: float | None) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota_us)
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(tmp_path) == quota


def test_count_is_at_least_one_and_at_most_what_there_is(tmp_path: Path) -> None:
    assert 1 <= count_cores(tmp_path) <= (os.cpu_count() or 1)
    (tmp_path / "cpu.max").write_text("10000 100000")
    assert count_cores(tmp_path) == 1
