"""Whether a text is JSON that is valid under a client's schema: the check of what the grammar did not enforce.

    problem_of(schema, text) -> None, or a sentence that names the place

The work is bounded for every schema and text; how, says `validation.py`. What could not be checked passes: a refusal
would blame an answer that may be right. Nothing is fetched: a `$ref` to somewhere else is not checked.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_LONGEST_MESSAGE: Final = 200


def problem_of(schema: Any, text: str) -> str | None:
    """Return what is wrong with `text` as an answer to `schema`, None if nothing is or it cannot be told."""
    # The package takes 0.1 s to load, and most workers never need it.
    from worker.schemas.validation import GivenUp, first_error

    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return "The answer has too many lists and objects inside one another."
    except ValueError as error:
        return f"The answer is not JSON: {error}."[:_LONGEST_MESSAGE]
    try:
        wrong = first_error(schema, value)
    except (GivenUp, RecursionError, TypeError, ArithmeticError, re.error):
        # TypeError: the schema itself is a mistake where an older draft allowed more, such as `required: true`.
        return None
    if wrong is None:
        return None
    path, said = wrong
    said = said if len(said) <= _LONGEST_MESSAGE else f"{said[: _LONGEST_MESSAGE - 3]}..."
    return f"The answer does not fit the schema at {path}: {said}."


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
