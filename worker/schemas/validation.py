"""Values against a client's schema, with bounded work for every schema and value.

Owns what differs from the `jsonschema` package. Patterns are matched by the grammar library, whose automata do not
backtrack; one that it does not know (lookaround, back references, word boundaries) runs in Python's engine where no
repetition stands inside another and the text is so short that the worst case is cheap, and is not checked otherwise.
Keywords are counted, and a check that would take too many is given up. Must never fetch anything.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, Final

import referencing.exceptions
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from worker.schemas.patterns import MAX_CHARS, matches

MAX_KEYWORDS: Final = 100_000
"""Applied to values; long lists of constants count for more than one."""
PER_MATCH: Final = 10
"""What one pattern on one text counts for: an automaton that was not kept is built in a quarter of a millisecond."""
MAX_PYTHON_STEPS: Final = 10_000_000
"""Of all matches of one check that Python has to do, each as many as it may take at most: under a tenth of a second."""
MAX_DEPTH: Final = 120
"""Keywords inside each other. Each takes up to six of Python's frames, of which there are 1,000; beyond those a library
in Rust (`rpds`) that compares keys for `referencing` does not raise a RecursionError but panics."""

_Check = Callable[..., Iterator[ValidationError]]
_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


class GivenUp(Exception):
    """The check would take too long."""


def first_error(schema: Any, value: Any) -> tuple[str, str] | None:
    """Return the path of something in `value` that does not fit `schema`, and why; None if all fits. Raises: GivenUp.

    A schema that is a mistake may also end in a TypeError, ArithmeticError, RecursionError or re.error.
    """
    _steps_left.set([MAX_PYTHON_STEPS])
    default = validator_for(schema if isinstance(schema, dict) else {}, default=Draft202012Validator)
    error = next(_bounded(default)(schema, registry=REGISTRY).iter_errors(value), None)
    return None if error is None else (error.json_path, error.message)


def _bounded(default: Any) -> Any:
    """Return a validator like `default` that gives up in time, and that never lets a pattern backtrack."""
    num_left = [MAX_KEYWORDS]
    depth = [0]

    def counted(name: str, check: _Check) -> _Check:
        def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            num_left[0] -= 1 + (len(value) if isinstance(value, list) else 0)
            num_left[0] -= PER_MATCH * _num_matches(name, instance, schema)
            if num_left[0] < 0 or depth[0] >= MAX_DEPTH:
                raise GivenUp
            depth[0] += 1
            try:
                yield from check(validator, value, instance, schema) or ()
            finally:
                depth[0] -= 1

        return checked

    own: dict[str, _Check] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "multipleOf": _multiple_of,
        "uniqueItems": _unique_items,
    }
    for name in ("$ref", "$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems"):
        if name in default.VALIDATORS:
            own[name] = _where_it_is_here(default.VALIDATORS[name])
    checks = {name: own.get(name, check) for name, check in default.VALIDATORS.items()}
    return extend(default, {name: counted(name, check) for name, check in checks.items()})


def _num_matches(name: str, instance: Any, schema: Any) -> int:
    """Return how many patterns the keyword `name` tries on how many texts, all in all."""
    if name == "pattern":
        return 1
    patterns = schema.get("patternProperties") if name in ("patternProperties", "additionalProperties") else None
    return len(patterns) * len(instance) if isinstance(patterns, dict) and isinstance(instance, dict) else 0


def _where_it_is_here(check: _Check) -> _Check:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        try:
            yield from check(validator, value, instance, schema) or ()
        except referencing.exceptions.Unresolvable:
            return

    return checked


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and _found(pattern, instance) is False:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, demand: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    patterns = schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in schema.get("properties", {}) or any(_found(pattern, name) is not False for pattern in patterns):
            continue
        if demand is False:
            yield ValidationError(f"the property {name!r} is not allowed")
        elif isinstance(demand, dict):
            yield from validator.descend(value, demand, path=name)


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check in decimals, as numbers are written: 0.07 is a multiple of 0.01, which it is not in binary."""
    if not validator.is_type(instance, "number"):
        return
    if instance in (float("inf"), float("-inf")) or Fraction(repr(instance)) % Fraction(repr(step)):
        yield ValidationError(f"{instance!r} is not a multiple of {step!r}")


def _unique_items(validator: Any, demand: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Compare texts of the items: in proportion to their number, where one with another would be its square."""
    if demand and validator.is_type(instance, "array"):
        written = [json.dumps(_comparable(item), sort_keys=True) for item in instance]
        if len(set(written)) < len(written):
            yield ValidationError("an item stands in the list twice")


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _comparable(inner) for name, inner in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- patterns -------------------------------------------------------------------------------------------------


def _found(pattern: Any, text: str) -> bool | None:
    """Return whether `pattern` matches somewhere in `text`; None = it cannot be told in time."""
    if not isinstance(pattern, str) or len(pattern) > MAX_CHARS:
        return None
    if (found := matches(pattern, text)) is not None:
        return found
    if (num_loops := _loops(pattern)) is None:
        return None
    num_steps, left = (len(text) + 1) ** (num_loops + 1), _steps_left.get()
    if num_steps > left[0]:
        return None
    left[0] -= num_steps
    return re.search(pattern, text) is not None


@functools.lru_cache(maxsize=256)
def _loops(pattern: str) -> int | None:
    """Return how many repetitions and choices `pattern` has; None where one stands inside a repetition, or may follow
    what another group has found."""
    if re.search(r"\\[1-9]|\(\?P=|\(\?\(", pattern):
        return None
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "c", re.sub(r"\\.", "c", pattern)).replace("(?", "(")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
    if re.search(r"\)(?:[*+]|\{)", plain):
        return None
    return len(re.findall(r"[*+?|]|\{\d*,", plain))
