"""What differs between two catalogues, and when it takes effect.

Owns the comparison and its words. Must not know files, nor whether a model is loaded: a worker that was started with
what has changed is the fleet's affair.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router.catalog import Catalog, ModelSpec
from router.catalog_keys import MODEL_KEYS

AVAILABILITY = "availability"
"""Stands for a problem that has come or gone, where the other words are keys of `models.yaml`."""

_KEYS = {
    "source": "model",
    "base_dir": "model",
    "file_marks": "model",
    "draft_source": "draft_model",
    "chat_template_file": "chat_template",
    "devices": "device",
    "is_partial_allowed": "gpu_layers",
    "remote": "url",
    "problem": AVAILABILITY,
}
"""Fields of a `ModelSpec` that are written under another key."""

_ENGINE_KEYS = {key.engine: name for name, key in MODEL_KEYS.items() if key.engine is not None and key.negates is None}

_NOT_SETTINGS = frozenset({"models", "path"})
_MAX_NAMES = 5
"""Of one kind in a line of the log; the verdict of `POST /admin/reload` has them all."""


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """What a new catalogue brings, by the keys of `models.yaml`."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By model, the keys whose change holds from now on."""
    restarted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By model, the keys that hold once its worker, if it has one, was idle; a model may be in both."""
    num_unchanged: int = 0
    settings: tuple[str, ...] = ()
    """What has changed beside the models, such as `limits.max_loaded` or `keys`."""

    @property
    def is_empty(self) -> bool:
        """True when both catalogues say the same."""
        return not (self.added or self.removed or self.changed or self.restarted or self.settings)

    def describe(self) -> str:
        """Return it in words, on one line."""
        if self.is_empty:
            return "nothing has changed"
        parts = []
        if self.added:
            parts.append(f"{_count(self.added)} added ({_names(self.added)})")
        if self.removed:
            parts.append(f"{_count(self.removed)} removed ({_names(self.removed)})")
        if self.changed:
            parts.append(f"{_count(self.changed)} changed ({_names(_with_keys(self.changed))})")
        if self.restarted:
            told = _names(_with_keys(self.restarted))
            parts.append(f"{_count(self.restarted)} restarted when idle ({told})")
        if self.settings:
            parts.append(f"changed for all: {', '.join(self.settings)}")
        parts.append(f"{self.num_unchanged} unchanged")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return it as `POST /admin/reload` shows it."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": {name: list(keys) for name, keys in self.changed.items()},
            "restarted_when_idle": {name: list(keys) for name, keys in self.restarted.items()},
            "unchanged": self.num_unchanged,
            "settings": list(self.settings),
        }


def compare(old: Catalog, new: Catalog) -> CatalogDiff:
    """Return what `new` changes, in the order of the new text."""
    changed: dict[str, tuple[str, ...]] = {}
    restarted: dict[str, tuple[str, ...]] = {}
    num_unchanged = 0
    for name, spec in new.models.items():
        before = old.models.get(name)
        if before is None:
            continue
        if before == spec:
            num_unchanged += 1
            continue
        at_once, when_idle = _changed_keys(before, spec)
        if at_once:
            changed[name] = at_once
        if when_idle:
            restarted[name] = when_idle
    return CatalogDiff(
        added=tuple(name for name in new.models if name not in old.models),
        removed=tuple(name for name in old.models if name not in new.models),
        changed=changed,
        restarted=restarted,
        num_unchanged=num_unchanged,
        settings=tuple(_changed_settings(old, new)),
    )


def _changed_keys(old: ModelSpec, new: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which keys hold at once, and which only for a new worker: those that its fingerprint depends on."""
    has_worker = old.remote is None and new.remote is None
    is_same_worker = not has_worker or old.fingerprint() == new.fingerprint()
    at_once: dict[str, None] = {}
    when_idle: dict[str, None] = {}
    for name in _changed_fields(old, new):
        value = getattr(new, name)
        needs_restart = not is_same_worker and (
            dataclasses.replace(old, **{name: value}).fingerprint() != old.fingerprint()
        )
        kept = when_idle if needs_restart else at_once
        kept |= dict.fromkeys(_engine_keys(old, new) if name == "engine" else (_KEYS.get(name, name),))
    return tuple(key for key in at_once if key not in when_idle), tuple(when_idle)


def _changed_fields(old: Any, new: Any) -> Iterator[str]:
    for one in dataclasses.fields(new):
        if one.compare and getattr(old, one.name) != getattr(new, one.name):
            yield one.name


def _engine_keys(old: ModelSpec, new: ModelSpec) -> list[str]:
    names = [name for name in {**old.engine, **new.engine} if old.engine.get(name) != new.engine.get(name)]
    return [_ENGINE_KEYS.get(name, name) for name in names]


def _changed_settings(old: Catalog, new: Catalog) -> Iterator[str]:
    for name in _changed_fields(old, new):
        if name == "limits":
            yield from (f"limits.{limit}" for limit in _changed_fields(old.limits, new.limits))
        elif name not in _NOT_SETTINGS:
            yield name


# --- words ------------------------------------------------------------------------------------------------


def _count(models: Sequence[str] | Mapping[str, Any]) -> str:
    return "1 model" if len(models) == 1 else f"{len(models)} models"


def _with_keys(changes: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}: {', '.join(keys)}" for name, keys in changes.items()]


def _names(names: Sequence[str]) -> str:
    separator = "; " if any(": " in name for name in names) else ", "
    shown = separator.join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"
