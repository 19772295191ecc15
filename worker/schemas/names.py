"""`propertyNames` as what the grammar library knows: properties that must not be there, and patterns of names."""

from __future__ import annotations

from typing import Any, Final

from worker.schemas.patterns import is_writable, matches, quoted_names, translate
from worker.schemas.problems import Ledger, at

_DEMANDS: Final = frozenset({"type", "enum", "const", "pattern", "minLength", "maxLength"})
_WHY: Final = "names are enforced where they are listed, or have a pattern and no properties are named beside"


def restrict(ledger: Ledger, names: Any, out: dict[str, Any], path: str) -> None:
    """Let the object `out` have only names that fit the schema `names`. Raises: WrongSchema, CannotEnforce.

    `names` has been looked through: it has no mistakes and no annotations.
    """
    here = at(path, "propertyNames")
    if isinstance(names, dict):
        kinds = names.get("type", "string")
        if kinds != "string" and "string" not in kinds:
            names = False
        elif names.keys() <= {"type", "format"}:
            return
    if names is True:
        return
    if names is False:
        out["properties"] = dict.fromkeys(out.get("properties", {}), False)
        out["additionalProperties"] = False
        out.pop("patternProperties", None)
    elif (
        names.keys() - {"format"} <= _DEMANDS
        and "patternProperties" not in out
        and _listed_or_formed(ledger, names, out, here)
    ):
        return
    else:
        ledger.give_up(here, _WHY)


def _listed_or_formed(ledger: Ledger, names: dict[str, Any], out: dict[str, Any], here: str) -> bool:
    if "enum" in names or "const" in names:
        if names.keys() & {"pattern", "minLength", "maxLength"}:
            return False
        return _list(names, out)
    if (pattern := _one_pattern(ledger, names, here)) is None:
        return False
    others = out.get("additionalProperties", True)
    named = {name: inner for name, inner in out.get("properties", {}).items() if inner is not False}
    if named and others not in (True, {}, False):
        return False  # the pattern would put the demands of other properties on these too
    fits = {name: matches(pattern, name) for name in named}
    if None in fits.values():
        return False
    out["properties"] = {name: inner if fits.get(name) else False for name, inner in out.get("properties", {}).items()}
    if others is not False:
        out["patternProperties"], out["additionalProperties"] = {translate(pattern).translated: others}, False
    return True


def _list(names: dict[str, Any], out: dict[str, Any]) -> bool:
    """Return whether `out` has only the names now; nothing is done where one of them cannot be a pattern."""
    listed = [name for name in names.get("enum", [names.get("const")]) if isinstance(name, str)]
    if "const" in names:
        listed = [name for name in listed if name == names["const"]]
    named = out.get("properties", {})
    if not all(is_writable(name) for name in listed if name not in named):
        return False
    out["properties"] = {name: inner if name in listed else False for name, inner in named.items()}
    others = out.get("additionalProperties", True)
    if (rest := [name for name in listed if name not in named]) and others is not False:
        out["patternProperties"] = {quoted_names(rest): others}
    out["additionalProperties"] = False
    return True


def _one_pattern(ledger: Ledger, names: dict[str, Any], here: str) -> str | None:
    """Return the pattern that says what `names` says, None if there is none."""
    lengths = names.keys() & {"minLength", "maxLength"}
    if "pattern" in names:
        ledger.spend(here, 1)
        pattern = translate(names["pattern"])
        if pattern.is_mistake:
            raise ledger.wrong(at(here, "pattern"), f"it is no regular expression: {pattern.problem}")
        return None if lengths or pattern.problem is not None else str(names["pattern"])
    most = names.get("maxLength", "")
    return f"^[\\s\\S]{{{int(names.get('minLength', 0))},{most if most == '' else int(most)}}}$"
