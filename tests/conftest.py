"""What holds for all tests."""

from __future__ import annotations

import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the garbage collector need not walk over them again and again."""
    gc.collect()
    gc.freeze()
