"""API keys as they are configured: where a key is found, what it may do, and how much of it.

Plain data. Must not read secrets (`auth.py`) nor count what was used (`key_usage.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

SCOPES = ("inference", "metrics", "admin")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """How much one key may have. None = as much as there is."""

    models: tuple[str, ...] = ()
    """Names of models, or patterns with `*`, that it may use; () = all."""
    max_priority: int | None = None
    """The highest `priority` that its requests may ask for; None = 0, or any for scope `admin`."""
    max_concurrent: int | None = None
    """Requests that may run or wait at the same time."""
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    """Tokens of prompts and answers together."""
    weight: float = 1.0
    """Its share where requests of several keys wait: one of weight 2 gets twice the tokens of one of weight 1."""


@dataclass(frozen=True, slots=True)
class KeySpec:
    """An API key: where its secret comes from (exactly one of three) and what it may do."""

    id: str
    env: str | None = None
    file: Path | None = None
    sha256: str | None = None
    priority: int = 0
    """Of its requests, before their own; may be above 0."""
    scopes: frozenset[str] = frozenset({"inference"})
    limits: KeyLimits = field(default_factory=KeyLimits)
