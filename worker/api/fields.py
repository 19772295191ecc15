"""Request bodies to checked fields: types, and the wording of field errors.

Owns the base of every body's model. Must not know any field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError

from worker.api.refusals import show
from worker.errors import RequestError, UnsupportedParameter

F = TypeVar("F", bound="Fields")
T = TypeVar("T")


def _whole(value: Any) -> Any:
    """Return 5 for 5.0: some languages have only one kind of number. 1e300 counts nothing and stays as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def wrong(message: str) -> PydanticCustomError:
    """Return the error that a validator raises to have `message` shown as it is."""
    return PydanticCustomError("wrong", "{message}", {"message": message})


def unsupported(message: str) -> PydanticCustomError:
    """Return the error that a validator raises for a value that cannot be honoured: "... is 5, which `message`"."""
    return PydanticCustomError("unsupported", "{message}", {"message": message})


Whole = Annotated[int, BeforeValidator(_whole)]


@dataclass(frozen=True, slots=True)
class _FirstOnly:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast(CoreSchema, {**handler(source), "fail_fast": True})


FIRST_ONLY = _FirstOnly()
"""Of a list: it is looked at up to its first wrong entry. Millions of wrong ones would be millions of errors."""


class Fields(BaseModel):
    """A request body, or a part of one. Each field's description completes the sentence "it must be ..."."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


def read_fields(cls: type[F], body: Mapping[str, Any]) -> F:
    """Return the checked fields of `body`. Raises: RequestError that names the first wrong field."""
    try:
        return cls.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    path, description = _describe(cls, first["loc"])
    sentence = _sentence(path, description, first["type"], first["msg"], first["input"])
    raise (UnsupportedParameter if first["type"] == "unsupported" else RequestError)(sentence, param=path)


def one_of(names: Mapping[str, T | None]) -> T | None:
    """Return the value of fields that mean the same; None = none is said. Raises: RequestError when several differ."""
    said = {name: value for name, value in names.items() if value is not None}
    if len(set(said.values())) > 1:
        shown = " and ".join(f"'{name}' ({value})" for name, value in said.items())
        raise RequestError(f"{shown} contradict each other. Set only one of them.", param=next(iter(said)))
    return next(iter(said.values()), None)


def _describe(cls: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, str]:
    """Return the path of a field, such as `stream_options.include_usage` or `input[2].role`, and what it must be."""
    path, description = "", "of another type"
    model: type[BaseModel] | None = cls
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        field = None if model is None else model.model_fields.get(step)
        if field is None:  # the name of a union's member or of a validator
            continue
        path = f"{path}.{step}" if path else step
        description = field.description or "of another type"
        model = _model_in(field.annotation)
    return path, description


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field's type is or contains."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model_in(one)) is not None), None)


def _sentence(path: str, description: str, type_: str, msg: str, value: object) -> str:
    match type_:
        case "missing":
            return f"'{path}' is missing: it must be {description}."
        case "wrong":
            return f"'{path}' {msg}."
        case "unsupported":
            return f"'{path}' is {show(value)}, which {msg}."
        case _:
            return f"'{path}' is {show(value)}, but it must be {description}."
