"""The fields that ask for a form of the answer's text, under all the names that clients have for them.

Owns what these names mean and that they do not contradict each other. Must not know messages or models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import orjson
from pydantic import Field, WithJsonSchema

from worker.api.fields import FIRST_ONLY, Fields
from worker.api.json_schemas import NULL, TEXT, any_of, list_of
from worker.api.output_format import (
    OutputFormat,
    choice_format,
    gbnf_format,
    json_object_format,
    json_schema_format,
    lark_format,
    regex_format,
)
from worker.api.refusals import show
from worker.errors import RequestError, UnsupportedParameter

_SCHEMA: dict[str, Any] = any_of({"type": "object"}, {"type": "boolean"})
_FORMAT: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"enum": ["text", "json_object", "json_schema", "json", "grammar", "regex", "choice"]}},
    "required": ["type"],
}


class FormatFields(Fields):
    """What clients call it. None = not said."""

    response_format: Annotated[dict[str, Any] | None, WithJsonSchema(any_of(_FORMAT, NULL))] = Field(
        None, description='an object such as {"type": "json_schema", "json_schema": {"schema": {...}}}'
    )
    json_schema: Annotated[dict[str, Any] | bool | None, WithJsonSchema(any_of(_SCHEMA, NULL))] = Field(
        None, description="a JSON schema"
    )
    grammar: str | None = Field(None, description="a grammar in GBNF")
    regex: str | None = Field(None, description="a regular expression")
    choice: Annotated[
        Annotated[list[str], FIRST_ONLY] | None, WithJsonSchema(any_of(list_of(TEXT, minItems=1), NULL))
    ] = Field(None, description="a list of texts")
    lark: str | None = Field(None, description="a grammar in Lark's notation")
    ebnf: str | None = Field(None, description="a grammar in GBNF")
    guided_json: Annotated[dict[str, Any] | bool | str | None, WithJsonSchema(any_of(_SCHEMA, TEXT, NULL))] = Field(
        None, description="a JSON schema"
    )
    guided_regex: str | None = Field(None, description="a regular expression")
    guided_choice: Annotated[list[str], FIRST_ONLY] | None = Field(None, description="a list of texts")
    guided_grammar: str | None = Field(None, description="a grammar in GBNF or in Lark's notation")
    structured_outputs: dict[str, Any] | None = Field(
        None, description="an object with one of `json`, `regex`, `choice`, `grammar`, `json_object`"
    )

    def read_format(self) -> OutputFormat | None:
        """Return the form that is asked for; None = any text. Raises: RequestError naming the field."""
        said: list[OutputFormat] = []
        for name, read in _READERS.items():
            value = getattr(self, name)
            if value is None or (value == "" and name in _EMPTY_IS_NONE):
                continue
            if (found := read(value, name)) is not None:
                said.append(found)
        if len(said) > 1:
            raise RequestError(
                f"'{said[0].param}' and '{said[1].param}' both ask for a form of the answer. Set only one of them.",
                param=said[1].param,
            )
        return said[0] if said else None


def read_response_format(value: dict[str, Any], param: str) -> OutputFormat | None:
    """Return what a `response_format` asks for; None = any text.

    The schema may stand where OpenAI has it (`json_schema.schema`, or in Responses' `text.format` `schema`), where
    llama-server and others have it (`schema` beside `json_object`), or be `json_schema` itself.
    """
    match value.get("type"):
        case "text":
            return None
        case "json_object" | "json":
            name = "value" if "value" in value else "schema"
            schema = value.get(name)
            return (
                json_object_format(param)
                if schema is None or schema == {}
                else json_schema_format(schema, param=f"{param}.{name}")
            )
        case "json_schema":
            return _read_json_schema(value, param)
        case "regex":
            return regex_format(_text(value, "pattern", "regex", "value", param=param), param=param)
        case "grammar":
            return read_grammar(_text(value, "grammar", "value", param=param), param)
        case "choice":
            return _read_choice(value.get("choice", value.get("choices")), param)
        case "structural_tag":
            raise RequestError(
                f"'{param}.type' is \"structural_tag\", which is not available on this server. Use 'tools', or 'lark' "
                "for a grammar of your own.",
                param=f"{param}.type",
            )
        case other:
            raise RequestError(
                f'\'{param}.type\' is {show(other)}, but it must be "text", "json_object" or "json_schema".',
                param=f"{param}.type",
            )


def _read_json_schema(value: dict[str, Any], param: str) -> OutputFormat:
    outer = value.get("json_schema")
    strict, strict_place = value.get("strict"), f"{param}.strict"
    if outer is None:
        place, schema = f"{param}.schema", value.get("schema")
    elif isinstance(outer, dict) and ("schema" in outer or "name" in outer):
        place, schema = f"{param}.json_schema.schema", outer.get("schema")
        strict, strict_place = outer.get("strict"), f"{param}.json_schema.strict"
    else:
        place, schema = f"{param}.json_schema", outer
    if schema is None:
        raise RequestError(f"'{place}' is missing: it must be a JSON schema.", param=place)
    if not isinstance(strict, bool | None):
        raise RequestError(f"'{strict_place}' is {show(strict)}, but it must be true or false.", param=strict_place)
    return json_schema_format(schema, param=place, relaxes=strict is False)


def read_grammar(text: str, param: str) -> OutputFormat:
    """Return the form of a grammar in either notation: only GBNF has `::=`."""
    return gbnf_format(text, param=param) if "::=" in text else lark_format(text, param=param)


def _read_choice(value: Any, param: str) -> OutputFormat:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RequestError(f"'{param}' must be a list of texts.", param=param)
    return choice_format(value, param=param)


def _text(value: dict[str, Any], *names: str, param: str) -> str:
    text = next((value[name] for name in names if name in value), None)
    if not isinstance(text, str):
        raise RequestError(f"'{param}.{names[0]}' is missing: it must be a string.", param=f"{param}.{names[0]}")
    return text


def _read_structured(value: dict[str, Any], param: str) -> OutputFormat | None:
    """Return what vLLM's object asks for. Raises: RequestError for more than one thing, or one that is not known."""
    said = {name: one for name, one in value.items() if not (one is None or one is False or name in _WITHOUT_EFFECT)}
    for name in said:
        if name not in _STRUCTURED:
            raise UnsupportedParameter(
                f"'{param}.{name}' is not available on this server: {', '.join(_STRUCTURED)} are.",
                param=f"{param}.{name}",
            )
    if len(said) > 1:
        raise RequestError(f"'{param}' asks for more than one form: {', '.join(said)}.", param=param)
    return next((_STRUCTURED[name](one, f"{param}.{name}") for name, one in said.items()), None)


def _read_json_object(value: Any, param: str) -> OutputFormat:
    if value is not True:
        raise RequestError(f"'{param}' is {show(value)}, but it must be true or false.", param=param)
    return json_object_format(param)


def _typed(read: Callable[[str, str], OutputFormat]) -> Callable[[Any, str], OutputFormat]:
    def checked(value: Any, param: str) -> OutputFormat:
        if not isinstance(value, str):
            raise RequestError(f"'{param}' must be a string.", param=param)
        return read(value, param)

    return checked


def _read_schema(value: Any, param: str) -> OutputFormat:
    """Return the form of JSON for a schema, which may also be the text of one."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise RequestError(f"'{param}' is a text, but not that of a JSON schema: {error}.", param=param) from None
    return json_schema_format(value, param=param)


_EMPTY_IS_NONE = frozenset({"grammar", "ebnf", "guided_grammar", "lark"})
"""llama.cpp's clients send an empty grammar for none."""
_WITHOUT_EFFECT = frozenset({"disable_fallback"})
"""There is none in any case."""
_STRUCTURED: dict[str, Callable[[Any, str], OutputFormat | None]] = {
    "json": _read_schema,
    "json_object": _read_json_object,
    "regex": _typed(lambda text, param: regex_format(text, param=param)),
    "choice": _read_choice,
    "grammar": _typed(read_grammar),
}
_READERS: dict[str, Callable[[Any, str], OutputFormat | None]] = {
    "response_format": read_response_format,
    "json_schema": lambda value, param: json_schema_format(value, param=param),
    "grammar": lambda text, param: gbnf_format(text, param=param),
    "regex": lambda text, param: regex_format(text, param=param),
    "choice": _read_choice,
    "lark": lambda text, param: lark_format(text, param=param),
    "ebnf": lambda text, param: gbnf_format(text, param=param),
    "guided_json": _read_schema,
    "guided_regex": lambda text, param: regex_format(text, param=param),
    "guided_choice": _read_choice,
    "guided_grammar": read_grammar,
    "structured_outputs": _read_structured,
}
"""Field to what reads it."""
