"""One server for all tests of this set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.target import Target, target


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("fuzzed")) as found:
        yield found
