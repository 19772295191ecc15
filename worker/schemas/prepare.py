"""From a client's JSON Schema to the one that the grammar library gets, and what that one does not demand.

    prepare_schema(schema, param=...) -> PreparedSchema       a grammar that enforces all of it, or a refusal
    prepare_schema(schema, param=..., relaxes=True)           as much as possible, and a list of the rest

Owns the limits, and the options of the library. Must neither enforce anything itself nor fetch anything. The largest
schemas that pass take about a second, so callers keep this off the event loop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher

from worker.schemas.expansion import Expansion, TooMuch
from worker.schemas.problems import CannotEnforce, Ledger, Relaxed, SchemaTooLarge, WrongSchema
from worker.schemas.rewriting import Rewriting

JSON_OPTIONS: Final[dict[str, Any]] = {
    # What models write by themselves, `{"a": 1}` or indented lines, and at each place only once: with the library's
    # own pattern, which has no end, a model at a high temperature writes spaces until its tokens are used up.
    "whitespace_pattern": r" |\n {0,16}",
    # Without `u`: the library compares the names of properties as they are written, so "\u0061" would pass for a
    # property that is not "a". All characters but control characters are written as they are.
    "json_allowed_escapes": 'nrbtf\\"',
    # What is not enforced must be known; the room decides itself where `oneOf` is `anyOf`.
    "coerce_one_of": False,
    "lenient": False,
}
"""For `grammar_from_json_schema(schema, overrides=JSON_OPTIONS)`, or as `x-guidance` inside the schema of `%json`."""

MAX_BYTES: Final = 512 * 1024
MAX_NESTING: Final = 100
"""Objects and lists inside one another; the library's own parser ends at 128."""


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema that the library enforces to the letter."""

    schema: dict[str, Any]
    """References lead to `#/$defs/…` alone: every part of it, with these `$defs` beside, stands for itself."""
    relaxed: tuple[Relaxed, ...]
    """What the client's schema demands beyond it; not empty = check the answer with `problem_of`."""

    def for_lark(self) -> str:
        """Return the schema as it follows `%json` in a Lark grammar, options included."""
        return json.dumps({"x-guidance": JSON_OPTIONS, **self.schema})

    def to_grammar(self) -> str:
        """Return the grammar of the library that is this schema and nothing around it."""
        return LLMatcher.grammar_from_json_schema(json.dumps(self.schema), overrides=JSON_OPTIONS)  # type: ignore[arg-type]


def prepare_schema(schema: Any, *, param: str, relaxes: bool = False) -> PreparedSchema:
    """Return what is enforced of `schema`. `param` is the field that is blamed.

    With `relaxes` everything that cannot be enforced is let go and listed; without it, only bounds that are too large
    to be counted are, and the rest is refused.
    Raises: RequestError (WrongSchema, CannotEnforce, SchemaTooLarge).
    """
    _require_size(schema, param)
    rewriting = Rewriting(schema, ledger := Ledger(param, relaxes))
    rewritten = rewriting.run()
    if rewritten is False:
        raise WrongSchema("$", "no value can fit it", param=param)
    prepared = PreparedSchema({} if rewritten is True else rewritten, tuple(dict.fromkeys(ledger.relaxed)))
    try:
        Expansion(prepared.schema).count()
    except TooMuch as error:
        path = rewriting.paths.get(id(error.culprit), "$")
        if not relaxes:
            raise SchemaTooLarge(path, error.why, param=param) from None
        return _bare(prepared, Relaxed(path, error.why))
    is_error, said = LLMatcher.validate_grammar_with_warnings(prepared.to_grammar())
    if not is_error:
        return prepared
    why = said[0].strip().splitlines()[0]
    if "Unsatisfiable" in said[0]:
        raise WrongSchema("$", f"no value can fit it ({why})", param=param)
    if not relaxes:
        raise CannotEnforce("$", f"no grammar can be made of it ({why})", param=param)
    return _bare(prepared, Relaxed("$", f"no grammar can be made of it ({why})"))


def _bare(prepared: PreparedSchema, relaxed: Relaxed) -> PreparedSchema:
    """Return what is left when the whole of a schema cannot be enforced: its type."""
    kept = {"type": prepared.schema["type"]} if "type" in prepared.schema else {}
    return PreparedSchema(kept, (*prepared.relaxed, relaxed))


def _require_size(schema: Any, param: str) -> None:
    """Raises: WrongSchema, SchemaTooLarge."""
    if not isinstance(schema, dict | bool):
        raise WrongSchema("$", "a schema is an object, true or false", param=param)
    level: list[Any] = [schema]
    depth = 0
    while level := [
        inner
        for value in level
        if isinstance(value, dict | list)
        for inner in (value.values() if isinstance(value, dict) else value)
    ]:
        depth += 1
        if depth > MAX_NESTING:
            raise SchemaTooLarge("$", f"more than {MAX_NESTING} objects and lists inside one another", param=param)
    try:
        written = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise WrongSchema("$", "it has half of a surrogate pair, which is no character", param=param) from None
    except ValueError:
        raise WrongSchema("$", "it has a number that is none: infinity, or too large", param=param) from None
    if len(written) > MAX_BYTES:
        raise SchemaTooLarge("$", f"{len(written):,} bytes, the limit is {MAX_BYTES:,}", param=param)
