"""How often what is random is tried: a little by default, and much more among the slow tests."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[5, pytest.param(40, marks=pytest.mark.slow)])
def num_walks(request: pytest.FixtureRequest) -> int:
    """Return how many random outputs of a grammar are read."""
    num: int = request.param
    return num
