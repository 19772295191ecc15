"""Where a `$ref` leads: the schemas inside one document by their `$id`, anchors and JSON pointers.

Owns addresses. Never fetches anything: what is not in the document is remote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from worker.schemas.problems import at

_ONE: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_LISTS: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAPS: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)


@dataclass(frozen=True, slots=True)
class Place:
    """A schema in the document."""

    schema: Any
    path: str
    base: str
    """The address against which references inside are read."""


class NotHere(Exception):
    """The reference leads out of the document."""


class LeadsNowhere(Exception):
    """The reference leads into the document, but to nothing that is there."""


def _joined(base: str, address: str) -> str:
    try:
        return urldefrag(urljoin(base, address)).url
    except ValueError:  # no address at all, such as "http://["
        return address


@dataclass(slots=True)
class References:
    """All addresses of one document."""

    root: Any
    _id_keyword: str = "$id"
    _is_old: bool = False
    """In these drafts what stands beside a `$ref` is not read."""
    _resources: dict[str, Place] = field(default_factory=dict)
    _anchors: dict[tuple[str, str], Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Elsewhere `id` is no keyword, and often the name of a thing.
        dialect = str(self.root.get("$schema")) if isinstance(self.root, dict) else ""
        if "draft-04" in dialect:
            self._id_keyword = "id"
        self._is_old = any(draft in dialect for draft in ("draft-04", "draft-06", "draft-07"))
        self._resources[""] = Place(self.root, "$", "")
        pending = [Place(self.root, "$", "")]
        while pending:
            place = pending.pop()
            if not isinstance(schema := place.schema, dict):
                continue
            base = self.base_of(schema, place.base)
            place = Place(schema, place.path, base)
            if base != "":
                self._resources.setdefault(base, place)
            anchors = [schema.get("$anchor"), schema.get("$dynamicAnchor")]
            if isinstance(own := schema.get(self._id_keyword), str) and own.startswith("#"):
                anchors.append(own.removeprefix("#"))
            for anchor in anchors:
                if isinstance(anchor, str):
                    self._anchors.setdefault((base, anchor), place)
            pending.extend(Place(inner, path, base) for inner, path in _subschemas(schema, place.path))

    def base_of(self, schema: dict[str, Any], base: str) -> str:
        """Return the address of `schema`, which stands where `base` holds."""
        own = schema.get(self._id_keyword)
        if not isinstance(own, str) or own.startswith("#") or (self._is_old and "$ref" in schema):
            return base
        return _joined(base, own)

    def resolve(self, reference: str, base: str) -> Place:
        """Return where `reference` leads from a place with the address `base`. Raises: NotHere, LeadsNowhere."""
        address, _, fragment = reference.partition("#")
        target = base if not address else _joined(base, address)
        if (resource := self._resources.get(target)) is None:
            raise NotHere
        fragment = unquote(fragment)
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return self._follow(resource, fragment)
        if (place := self._anchors.get((resource.base, fragment))) is None:
            raise LeadsNowhere
        return place

    def _follow(self, resource: Place, pointer: str) -> Place:
        value, path, base = resource.schema, resource.path, resource.base
        for token in pointer.split("/")[1:]:
            step = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value, path = value[step], at(path, step)
            elif (
                isinstance(value, list)
                and step.isascii()
                and step.isdigit()
                and len(step) < 9
                and int(step) < len(value)
            ):
                value, path = value[int(step)], at(path, int(step))
            else:
                raise LeadsNowhere
            if isinstance(value, dict):
                base = self.base_of(value, base)
        return Place(value, path, base)


def _subschemas(schema: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    for key, value in schema.items():
        if key in _ONE and isinstance(value, dict):
            yield value, at(path, key)
        if key in _LISTS and isinstance(value, list):
            yield from ((inner, at(path, key, index)) for index, inner in enumerate(value))
        if key in _MAPS and isinstance(value, dict):
            yield from ((inner, at(path, key, name)) for name, inner in value.items())
