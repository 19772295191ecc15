"""What holds for all tests."""

from __future__ import annotations

import gc
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and every program that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the garbage collector need not walk over them again and again."""
    gc.collect()
    gc.freeze()
