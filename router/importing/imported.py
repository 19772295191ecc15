"""What has been read of another server's configuration, in our own words.

Owns these records. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class NotImportable(Exception):
    """The text is not what it was taken for; the message says what is wrong with it."""


@dataclass(slots=True)
class ImportedModel:
    """One model, as its options come together."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    """Keys of `models.yaml` with values for YAML."""
    notes: list[str] = field(default_factory=list)
    """What was not carried over and why, or what is worth a look."""

    @property
    def is_usable(self) -> bool:
        """There is something to serve."""
        return "model" in self.options or "url" in self.options

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def set_request(self, rule: str, name: str, value: Any) -> None:
        """Have a value among the model's request rules: `rule` is `defaults` or `force`."""
        self.options.setdefault("request", {}).setdefault(rule, {})[name] = value

    def add_aliases(self, names: Mapping[str, Any]) -> None:
        """Have further names, each with options of an alias (or none)."""
        aliases = self.options.setdefault("aliases", {})
        for name, options in names.items():
            if name != self.name:
                aliases.setdefault(name, options)


@dataclass(slots=True)
class Imported:
    """A whole configuration."""

    origin: str
    """What it was, for people: `llama-swap's configuration`."""
    models: list[ImportedModel] = field(default_factory=list)
    top: dict[str, Any] = field(default_factory=dict)
    """Keys of the top level beside `models`."""
    notes: list[str] = field(default_factory=list)
    """About the file as a whole."""

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)
