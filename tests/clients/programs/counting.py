"""Many answers at a temperature at which a small model babbles, each read strictly as what was asked for.

Runs in the environments of the clients: imports nothing but the standard library and pydantic, which these clients
have. The client asks; here it is counted what became of the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

TEMPERATURE: Final = 1.5
MAX_TOKENS: Final = 64
AT_A_TIME: Final = 4
SHARES: Final = {"openai": 13, "anthropic": 13, "instructor": 12, "smolagents": 12}
"""Of fifty calls and fifty replies, how many each client asks for."""


class Form(BaseModel):
    """What is asked for; nothing else may be in it."""

    model_config = ConfigDict(extra="forbid")


class Weather(Form):
    """Get the weather of a city."""

    city: Literal["Paris", "Oslo", "Rome", "Cairo"]
    days: Annotated[int, Field(ge=1, le=14)]
    unit: Literal["C", "F"]


class Line(Form):
    """One line of an order."""

    name: Literal["milk", "bread", "eggs"]
    count: Annotated[int, Field(ge=1, le=9)]


class Order(Form):
    """Order food."""

    lines: Annotated[list[Line], Field(min_length=1, max_length=2)]
    express: bool


class Ticket(Form):
    """Open a ticket."""

    code: Annotated[str, Field(pattern="^[A-Z]{2}-[0-9]{3}$")]
    urgent: bool
    areas: Annotated[list[Literal["door", "roof", "wall"]], Field(max_length=3)]


class Person(Form):
    """Remember a person."""

    name: Annotated[str, Field(min_length=1, max_length=12)]
    age: Annotated[int, Field(ge=0, le=120)]
    friend: Literal["Ann", "Bob"] | None


class Drawing(Form):
    """Draw something."""

    size: Annotated[int, Field(gt=0, lt=1000, multiple_of=5)]
    colour: Literal["red", "green"] | Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(max_length=3)]


FORMS: Final[Sequence[type[Form]]] = (Weather, Order, Ticket, Person, Drawing)
FLAT: Final[Sequence[type[Form]]] = (Weather, Ticket, Person)
"""Those whose schemas have no definitions, for clients that take none."""


def request_for(form: type[Form]) -> str:
    """Return what the user says."""
    return f"{form.__doc__} Make up what you do not know."


@dataclass
class Count:
    """What became of a number of answers."""

    asked: int = 0
    valid: int = 0
    cut: int = 0
    """Ended by the limit of their length, and marked so."""


Ask = Callable[[type[Form], int], tuple[str, bool]]
"""Asks for a form with a seed. Returns the JSON, and whether the reply says that it was cut."""


def count(
    share: int, ask: Ask, forms: Sequence[type[Form]] = FORMS, *, extra: Literal["forbid", "ignore"] = "forbid"
) -> dict[str, Any]:
    """Return the count of so many answers. `extra` is what the schemas that are sent do with further fields.

    Raises: AssertionError for one that is neither valid nor marked as cut.
    """
    counted = Count()
    asked = [forms[number % len(forms)] for number in range(share)]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        told = list(threads.map(ask, asked, range(share)))
    for form, (text, is_cut) in zip(asked, told, strict=True):
        counted.asked += 1
        if is_cut:
            counted.cut += 1
            continue
        try:
            form.model_validate_json(text, strict=True, extra=extra)
        except ValidationError as error:
            raise AssertionError(f"no valid {form.__name__}: {text!r}\n{error}") from None
        counted.valid += 1
    return asdict(counted)
