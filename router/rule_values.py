"""Request rules whose values cannot be right, by what the routes say that they take.

Owns that comparison. What a field takes stands in the description of the routes (`openapi.json`), which is made of the
readers of requests themselves.
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from router.answer_limits import ANSWER_LIMITS
from router.catalog import RequestRules

_BODIES: Final = (
    *("ChatFields", "CompletionFields", "MessageFields", "ResponsesFields", "EmbeddingFields", "RerankFields"),
    *("LlamaCompletionFields", "LlamaInfillFields", "OllamaChatFields", "OllamaGenerateFields", "OllamaOptions"),
)
_NEAR: Final = 0.85
"""So alike must a name that nobody knows be to a known one to be called a mistake."""


def wrong_rules(rules: RequestRules) -> Iterator[tuple[str, str]]:
    """Yield the place of every rule that no route would take, such as `defaults.temperature`, and why.

    A name that no route knows is a mistake only if it is nearly one that they know: others may be for templates.
    """
    fields = _fields()
    for part in ("defaults", "force"):
        values: Mapping[str, Any] = getattr(rules, part)
        for name, value in values.items():
            schemas = fields.get(name)
            if schemas is None:
                near = [] if name in ANSWER_LIMITS else difflib.get_close_matches(name, fields, n=1, cutoff=_NEAR)
                if near:
                    yield f"{part}.{name}", f"no route has a field `{name}`: did you mean `{near[0]}`?"
            elif not any(_takes(schema, value) for schema in schemas):
                yield f"{part}.{name}", f"no route takes {_shown(value)} here{_wanted(schemas)}"


def _takes(schema: Mapping[str, Any], value: Any) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


@functools.cache
def _fields() -> dict[str, list[dict[str, Any]]]:
    """Return the schemas of every field of every body, each with the definitions that it may refer to."""
    text = importlib.resources.files("router").joinpath("openapi.json").read_text(encoding="utf-8")
    schemas = json.loads(text)["components"]["schemas"]
    fields: dict[str, list[dict[str, Any]]] = {}
    for body in _BODIES:
        for name, schema in schemas[body]["properties"].items():
            whole = {**schema, "components": {"schemas": schemas}}
            fields.setdefault(name, []).append(whole)
    return fields


def _wanted(schemas: list[dict[str, Any]]) -> str:
    """Return the first sentence about the field, which says what it takes."""
    sentence = str(schemas[0].get("description", "")).partition(". ")[0].rstrip(".")
    return f"; it takes {sentence[:1].lower()}{sentence[1:]}" if sentence else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"
