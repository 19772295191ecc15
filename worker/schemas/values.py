"""Keywords about single values and counts: constants, texts, numbers, and how many there may be.

Owns the bounds up to which they are enforced. Knows no subschemas.
"""

from __future__ import annotations

import functools
from decimal import Decimal
from typing import Any, Final

from worker.schemas.keywords import (
    FORMATS,
    LARGEST_BOUND,
    LARGEST_COUNT,
    MAX_DECIMALS,
    MAX_MULTIPLE,
    MAX_ZEROS,
    is_number,
)
from worker.schemas.patterns import compile_problem, is_writable, translate
from worker.schemas.problems import Ledger, at, quoted

_MAX_MULTIPLE_DECIMALS: Final = 9
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def rewrite(ledger: Ledger, key: str, schema: dict[str, Any], out: dict[str, Any], path: str) -> None:
    """Put into `out` what is enforced of the keyword `key` of `schema`. Raises: WrongSchema, CannotEnforce."""
    value, here = schema[key], at(path, key)
    match key:
        case "const" | "enum":
            if (why := _unwritable(value)) is None:
                out[key] = value
            else:
                ledger.give_up(here, why)
        case "pattern":
            _pattern(ledger, value, out, here)
        case "format":
            if value in FORMATS:
                out[key] = value
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            _bound(ledger, key, schema, out, here)
        case "multipleOf":
            if not _has_few_digits(value):
                ledger.loosen(here, f"multiples of {quoted(value)} are more than can be counted")
                return
            out[key] = value
        case _:
            assert key in _COUNTS, key
            _count(ledger, key, value, out, here)


def finish_text(ledger: Ledger, out: dict[str, Any], path: str) -> None:
    """Let go of lengths that the library cannot bring together with the form of the same text."""
    lengths = {key: out[key] for key in ("minLength", "maxLength") if key in out}
    forms = {key: out[key] for key in ("pattern", "format") if key in out}
    if not forms or len(forms) + len(lengths) < 2:
        return
    ledger.spend(path, 1)
    said = _text_problem((*forms.items(), *lengths.items()))
    if said is None or said.startswith("Unsatisfiable"):
        return
    for key in lengths or forms:
        del out[key]
        ledger.give_up(at(path, key), "together with the form of the same text it becomes too complex")


@functools.lru_cache(maxsize=1024)
def _text_problem(demands: tuple[tuple[str, Any], ...]) -> str | None:
    return compile_problem({"type": "string", **dict(demands)})


def finish_object(ledger: Ledger, out: dict[str, Any], path: str) -> None:
    """Keep `minProperties` and `maxProperties` as far as the library can count them here."""
    required, named = out.get("required", []), out.get("properties", {})
    is_closed = out.get("additionalProperties") is False and "patternProperties" not in out
    if out.get("minProperties", len(required) + 1) <= len(required):
        del out["minProperties"]
    if is_closed and out.get("maxProperties", -1) >= len(named):
        del out["maxProperties"]
    limits = {key: out[key] for key in ("minProperties", "maxProperties") if key in out}
    if not limits:
        return
    outline: dict[str, Any] = {"type": "object", "required": required, "additionalProperties": not is_closed}
    for key in ("properties", "patternProperties"):
        outline[key] = dict.fromkeys(out.get(key, ()), True)
    ledger.spend(path, 1)
    said = compile_problem(outline | limits)
    if said is not None and not said.startswith("Unsatisfiable"):
        for key in limits:
            del out[key]
            ledger.give_up(
                at(path, key), "properties are not counted where some of those that are named may be missing"
            )
    elif limits.get("minProperties", 0) > 1 and not is_closed:
        ledger.loosen(at(path, "minProperties"), "a name that is written twice counts twice")


def _count(ledger: Ledger, key: str, value: float, out: dict[str, Any], here: str) -> None:
    if value <= LARGEST_COUNT:
        out[key] = int(value)
    else:
        ledger.loosen(here, f"more than {LARGEST_COUNT:,} are not counted")


def _pattern(ledger: Ledger, value: str, out: dict[str, Any], here: str) -> None:
    ledger.spend(here, 1)
    pattern = translate(value)
    if pattern.is_mistake:
        raise ledger.wrong(here, f"it is no regular expression: {pattern.problem}")
    if pattern.problem is None:
        out["pattern"] = pattern.translated
    else:
        ledger.give_up(here, pattern.problem)


def _bound(ledger: Ledger, key: str, schema: dict[str, Any], out: dict[str, Any], here: str) -> None:
    value = schema[key]
    if isinstance(value, bool):  # draft 4
        inclusive = "minimum" if key == "exclusiveMinimum" else "maximum"
        if not value or inclusive not in schema:
            return
        value = schema[inclusive]
    elif schema.get({"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}.get(key, "")) is True:
        return
    if _is_exact(value):
        out[key] = value
    else:
        ledger.loosen(here, f"{quoted(value)} is too large or too fine to be compared with exactly")


def _is_exact(value: float) -> bool:
    """Return whether the library compares with `value` and not with a neighbour."""
    return abs(value) <= LARGEST_BOUND and -int(Decimal(repr(value)).as_tuple().exponent) <= MAX_DECIMALS


def _has_few_digits(value: float) -> bool:
    return significant(value) <= MAX_MULTIPLE and -_MAX_MULTIPLE_DECIMALS <= _power(value) <= MAX_ZEROS


def significant(value: float) -> int:
    """Return the digits of `value` as a number, without the decimal point and zeros at its ends."""
    return int("".join(map(str, Decimal(repr(value)).normalize().as_tuple().digits)))


def _power(value: float) -> int:
    return int(Decimal(repr(value)).normalize().as_tuple().exponent)


def _unwritable(value: Any) -> str | None:
    """Return why the library could not write a constant, None if it can."""
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, list):
            pending.extend(inner)
        elif isinstance(inner, dict):
            pending.extend(inner.values())
        elif isinstance(inner, str):
            if not is_writable(inner):
                return f"the control characters of {quoted(inner)} cannot be written"
        elif is_number(inner) and not _is_exact(inner):
            return f"{quoted(inner)} is too large or too fine to be written exactly"
    return None
