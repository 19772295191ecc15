"""A client's schema to one that the grammar library enforces to the letter, and a list of what had to be let go.

Owns what is done with each keyword of the table. The result has no annotations, no dialects and no addresses: it is
draft 2020-12 with references to `#/$defs/…` alone, where the whole may stand a second time. Dropping a keyword only
ever lets more answers through, so that what was dropped can be checked afterwards. Never fetches anything.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from worker.schemas import names, values
from worker.schemas.disjoint import Disjointness
from worker.schemas.emptiness import empty_references, without_references
from worker.schemas.expansion import Schema
from worker.schemas.keywords import KEYWORDS, MAX_PATTERN_PROPERTIES, TYPES, Treatment
from worker.schemas.patterns import compile_problem, translate
from worker.schemas.problems import Ledger, at, quoted
from worker.schemas.references import LeadsNowhere, NotHere, Place, References

_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef")
_LAST: Final = (
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
)
"""Of the keywords that stand together: each is read in the light of those before it."""
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(slots=True)
class Rewriting:
    """One document on its way through."""

    source: Any
    ledger: Ledger
    paths: dict[int, str] = field(default_factory=dict)
    """Where in the client's document each rewritten schema comes from, by its identity."""
    _references: References = field(init=False)
    _names: dict[str, str] = field(default_factory=dict)
    """References of the result by the path that they lead to in the client's document."""
    _num_named: dict[str, int] = field(default_factory=dict)
    _definitions: dict[str, Schema] = field(default_factory=dict)
    _pending: deque[tuple[str, Place]] = field(default_factory=deque)
    _one_of: list[tuple[list[Schema], str]] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)
    """Keeps alive what is known by its identity."""

    def __post_init__(self) -> None:
        self._references = References(self.source)

    def run(self) -> Schema:
        """Return the rewritten document. Raises: WrongSchema, CannotEnforce."""
        root = self._schema(Place(self.source, "$", ""))
        while self._pending:
            name, place = self._pending.popleft()
            self._definitions[name] = self._schema(place)
        if isinstance(root, bool):
            return root
        if self._definitions:
            root["$defs"] = self._definitions
        self._settle_one_of(root)
        dead = empty_references(root)
        return False if "#" in dead else without_references(root, dead)

    # --- one schema -------------------------------------------------------------------------------------------

    def _schema(self, place: Place) -> Schema:
        schema, path = place.schema, place.path
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self.ledger.wrong(path, f"a schema is an object, true or false, not {quoted(schema)}")
        place = Place(schema, path, self._references.base_of(schema, place.base))
        out: dict[str, Any] = {}
        self._kept.append(out)
        self.paths[id(out)] = path
        schema = self._without_mistakes(schema, path)
        if "not" in schema and self._not(schema, out, path):
            return False
        for key in self._ordered(schema):
            rewrite = _REWRITERS.get(key)
            if rewrite is None:
                values.rewrite(self.ledger, key, schema, out, path)
            else:
                rewrite(self, key, schema, out, place)
        values.finish_text(self.ledger, out, path)
        values.finish_object(self.ledger, out, path)
        return out

    def _without_mistakes(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """Return the keywords that mean something. Raises: WrongSchema."""
        meant: dict[str, Any] = {}
        for key, value in schema.items():
            row = KEYWORDS.get(key)
            if row is None or row.treatment is Treatment.ANNOTATION:
                continue
            if (mistake := row.mistake(value)) is not None:
                raise self.ledger.wrong(at(path, key), mistake)
            meant[key] = value
        return meant

    def _ordered(self, schema: dict[str, Any]) -> list[str]:
        """Return the keywords so that those of one kind stand together: the library reads them piece by piece.

        Properties are written in the order in which they are met, so `properties` keeps its place among the keywords
        that bring others.
        """
        keys = list(schema)
        own = [key for key in keys if key not in _IN_PLACE and key not in ("enum", "const")]
        if not own:
            return keys
        own.sort(key=lambda key: _LAST.index(key) if key in _LAST else -1)
        pivot = "properties" if "properties" in schema else own[0]
        ordered: list[str] = []
        for key in keys:
            if key == pivot:
                ordered.extend(own)
            elif key not in own:
                ordered.append(key)
        return ordered

    # --- keywords ---------------------------------------------------------------------------------------------

    def _one(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        out[key] = self._schema(Place(schema[key], at(place.path, key), place.base))

    def _list(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        out[key] = self._all(schema[key], at(place.path, key), place.base)

    def _all(self, schemas: list[Any], path: str, base: str) -> list[Schema]:
        return [self._schema(Place(inner, at(path, index), base)) for index, inner in enumerate(schemas)]

    def _map(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        path = at(place.path, key)
        out[key] = {name: self._schema(Place(inner, at(path, name), place.base)) for name, inner in schema[key].items()}

    def _one_of_keyword(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        options = self._all(schema[key], at(place.path, key), place.base)
        self._one_of.append((options, at(place.path, key)))
        if "anyOf" in schema:
            out.setdefault("allOf", []).append({"anyOf": options})
        else:
            out["anyOf"] = options

    def _all_of(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        parts = [part for part in self._all(schema[key], at(place.path, key), place.base) if part not in (True, {})]
        if parts:
            out["allOf"] = [*out.get("allOf", []), *parts]

    def _settle_one_of(self, root: dict[str, Any]) -> None:
        proof = Disjointness(root)
        for options, path in self._one_of:
            if not proof.holds(options):
                self.ledger.give_up(
                    path, "a value could fit more than one of its schemas, and that cannot be ruled out"
                )

    def _not(self, schema: dict[str, Any], out: dict[str, Any], path: str) -> bool:
        """Let `out` demand what `not` says, as far as possible; return whether nothing at all can fit."""
        inner = schema["not"]
        meant = inner if isinstance(inner, bool) else self._without_mistakes(inner, at(path, "not"))
        if meant is False:
            return False
        if meant is True or not meant:
            return True
        refused = meant["type"] if isinstance(meant.get("type"), list) else [meant.get("type")]
        if meant.keys() == {"type"} and ("integer" not in refused or "number" in refused):
            kinds = [kind for kind in TYPES if kind not in refused and kind != "integer"]
            out.setdefault("allOf", []).append({"type": kinds} if kinds else False)
            return False
        self.ledger.give_up(at(path, "not"), "what must not be there cannot be ruled out")
        return False

    def _reference(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        path = at(place.path, key)
        try:
            target = self._references.resolve(schema[key], place.base)
        except NotHere:
            self.ledger.give_up(path, f"{quoted(schema[key])} is not inside this schema, and nothing is fetched")
            return
        except LeadsNowhere:
            raise self.ledger.wrong(path, f"{quoted(schema[key])} leads to nothing in this schema") from None
        if (known := self._names.get(target.path)) is None:
            known = self._names[target.path] = self._defined(target)
        out[key] = known

    def _defined(self, target: Place) -> str:
        """Return the reference to a new definition of `target`."""
        name = _NAME.sub("_", target.path.rsplit(".", 1)[-1]).strip("_") or "root"
        number = self._num_named[name] = self._num_named.get(name, 0) + 1
        if number > 1:
            name = f"{name}__{number}"
        self._pending.append((name, target))
        return f"#/$defs/{name}"

    def _dynamic_reference(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        self.ledger.give_up(at(place.path, key), "references that depend on the way that led to them are not followed")

    def _items(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if not isinstance(schema[key], list):
            self._one(key, schema, out, place)
            return
        if "prefixItems" in schema:
            raise self.ledger.wrong(at(place.path, key), "beside prefixItems it must be a schema, not a list")
        if schema[key]:
            out["prefixItems"] = self._all(schema[key], at(place.path, key), place.base)
        if "additionalItems" in schema:
            path = at(place.path, "additionalItems")
            out["items"] = self._schema(Place(schema["additionalItems"], path, place.base))

    def _prefix_items(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if not isinstance(schema[key], list):
            raise self.ledger.wrong(at(place.path, key), "it must be a list of schemas")
        if schema[key]:
            self._list(key, schema, out, place)

    def _required(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if isinstance(schema[key], list):
            out[key] = list(dict.fromkeys(schema[key]))
        elif schema[key]:
            self.ledger.give_up(
                at(place.path, key), "true is the form of draft 3; list the names in the object's own required"
            )

    def _unique_items(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if schema[key] and schema.get("maxItems", 2) > 1 and "array" in _kinds(schema):
            self.ledger.give_up(at(place.path, key), "items are written one after another and not compared")

    def _contains(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if (schema.get("minContains") != 0 or "maxContains" in schema) and "array" in _kinds(schema):
            self.ledger.give_up(at(place.path, key), "items are not counted by what they are")

    def _dependent(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if any(inner not in (True, {}, []) for inner in schema[key].values()) and "object" in _kinds(schema):
            self.ledger.give_up(at(place.path, key), "a property cannot demand another one")

    def _if(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if any(schema.get(branch, True) not in (True, {}) for branch in ("then", "else")):
            self.ledger.give_up(at(place.path, key), "conditions are not followed; write the cases as anyOf")

    def _nothing(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        """Drop a keyword that demands nothing by itself."""

    def _unevaluated(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        simple, kind = {
            "unevaluatedProperties": ("additionalProperties", "object"),
            "unevaluatedItems": ("items", "array"),
        }[key]
        if schema[key] in (True, {}) or kind not in _kinds(schema):
            return
        beside = sorted(schema.keys() & {*_IN_PLACE, *(["contains"] if kind == "array" else [])})
        if beside:
            self.ledger.give_up(at(place.path, key), f"beside {', '.join(beside)} it is not followed")
        elif kind == "array" and isinstance(schema.get("items"), list):
            if "additionalItems" not in schema:
                out["items"] = self._schema(Place(schema[key], at(place.path, key), place.base))
        elif simple not in schema and ("patternProperties" not in schema or "patternProperties" in out):
            out[simple] = self._schema(Place(schema[key], at(place.path, key), place.base))

    def _pattern_properties(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        path = at(place.path, key)
        found: dict[str, Schema] = {}
        why = None
        if len(schema[key]) > MAX_PATTERN_PROPERTIES:
            why = f"there are more than {MAX_PATTERN_PROPERTIES} patterns"
        # The library compares each with each.
        self.ledger.spend(path, len(schema[key]) * (1 + min(len(schema[key]), MAX_PATTERN_PROPERTIES) // 16))
        for name, inner in schema[key].items():
            pattern = translate(name)
            if pattern.is_mistake:
                raise self.ledger.wrong(at(path, name), f"it is no regular expression: {pattern.problem}")
            if pattern.translated in found:
                why = "two of its patterns are the same"
            why = why or (pattern.problem and f"{quoted(name)}: {pattern.problem}")
            if why is None:
                found[pattern.translated] = self._schema(Place(inner, at(path, name), place.base))
        if why is None and len(found) > 1:
            said = compile_problem({"type": "object", "patternProperties": dict.fromkeys(found, True)})
            why = said and "two of its patterns fit the same name"
        if why is None:
            out[key] = {**out.get(key, {}), **found}
            return
        # What the patterns allowed must not be forbidden now as an additional property.
        out.pop("additionalProperties", None)
        self.ledger.give_up(path, why)

    def _additional_properties(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if "patternProperties" not in schema or "patternProperties" in out or not schema["patternProperties"]:
            self._one(key, schema, out, place)

    def _property_names(self, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
        if "object" not in _kinds(schema):
            return
        demands = self._resolved(schema[key], place)
        if isinstance(demands, dict):
            demands = self._without_mistakes(demands, at(place.path, key))
        names.restrict(self.ledger, demands, out, place.path)

    def _resolved(self, schema: Any, place: Place) -> Any:
        """Return the schema itself, or what it does nothing but refer to."""
        for _ in range(8):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                break
            if any(
                row.treatment is not Treatment.ANNOTATION for row in map(KEYWORDS.get, schema.keys() - {"$ref"}) if row
            ):
                break
            try:
                place = self._references.resolve(schema["$ref"], place.base)
            except (NotHere, LeadsNowhere):
                break
            schema = place.schema
        return schema


def _kinds(schema: dict[str, Any]) -> frozenset[str]:
    kinds = schema.get("type", TYPES)
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


_Rewriter = Callable[[Rewriting, str, dict[str, Any], dict[str, Any], Place], None]


def _type(rewriting: Rewriting, key: str, schema: dict[str, Any], out: dict[str, Any], place: Place) -> None:
    out[key] = schema[key]


_REWRITERS: Final[dict[str, _Rewriter]] = {
    "type": _type,
    "properties": Rewriting._map,
    "required": Rewriting._required,
    "additionalProperties": Rewriting._additional_properties,
    "patternProperties": Rewriting._pattern_properties,
    "propertyNames": Rewriting._property_names,
    "items": Rewriting._items,
    "prefixItems": Rewriting._prefix_items,
    "additionalItems": Rewriting._nothing,
    "allOf": Rewriting._all_of,
    "anyOf": Rewriting._list,
    "oneOf": Rewriting._one_of_keyword,
    "$ref": Rewriting._reference,
    "$dynamicRef": Rewriting._dynamic_reference,
    "$recursiveRef": Rewriting._dynamic_reference,
    "not": Rewriting._nothing,
    "unevaluatedProperties": Rewriting._unevaluated,
    "unevaluatedItems": Rewriting._unevaluated,
    "uniqueItems": Rewriting._unique_items,
    "contains": Rewriting._contains,
    "minContains": Rewriting._nothing,
    "maxContains": Rewriting._nothing,
    "dependentRequired": Rewriting._dependent,
    "dependentSchemas": Rewriting._dependent,
    "dependencies": Rewriting._dependent,
    "if": Rewriting._if,
    "then": Rewriting._nothing,
    "else": Rewriting._nothing,
}
"""Keywords with schemas inside, and those that are not enforced; `values` has the others."""
