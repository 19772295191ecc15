"""The filters and tests that templates may use: Jinja's own as far as chat templates need them, within limits.

Left out are those that make HTML and those that are random. Must not be used without a RenderContext.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.tests import TESTS as JINJA_TESTS

from worker.chat import text_operations
from worker.chat.limits import NODE_WORK, STEP_WORK
from worker.chat.render_context import RenderContext

_MAX_INDENT = 32
_MAX_ROUND_DIGITS = 300
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


def _of_text(change: Callable[..., str], work_per_char: int = 3) -> Callable[..., str]:
    """Return a filter that applies `change` to the text of its value."""

    @pass_context
    def changed(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> str:
        text = context.text(value)
        context.budget.spend(work_per_char * len(text))
        context.budget.walk(args, kwargs)
        return context.derive((text, args, kwargs), change(text, *args, **kwargs))

    return changed


def _of_items(function: Callable[..., Any], *, is_pass_environment: bool = True) -> Callable[..., Any]:
    """Return Jinja's `function` as a filter that sorts or searches a bounded list."""

    @pass_context
    def applied(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        items = value if isinstance(value, Mapping) else context.budget.listed(value)
        extent = context.budget.walk(items)
        context.budget.spend(extent.nodes.bit_length() * (extent.chars + extent.nodes))
        if is_pass_environment:
            return function(context.environment, items, *args, **kwargs)
        return function(items, *args, **kwargs)

    return applied


def _one_by_one(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return Jinja's `function`, which hands out values one by one, as a filter that counts all of them at once."""

    @pass_context
    def applied(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        items = context.budget.listed(value) if value else []
        context.budget.spend(STEP_WORK * len(items))
        return function(context, items, *args, **kwargs)

    return applied


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)


@pass_context
def _trim(context: RenderContext, value: Any, chars: str | None = None) -> str:
    text = context.text(value)
    context.budget.spend(len(text))
    made: str = context.part(text, text.strip(chars))
    return made


@pass_context
def _string(context: RenderContext, value: Any) -> str:
    return context.text(value)


@pass_context
def _center(context: RenderContext, value: Any, width: int = 80) -> str:
    context.budget.pad(width)
    text = context.text(value)
    return context.derive((text,), text.center(width))


@pass_context
def _replace(context: RenderContext, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return text_operations.replace(
        context, context.text(value), context.text(old), context.text(new), -1 if count is None else count
    )


@pass_context
def _join(context: RenderContext, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
    items = context.budget.listed(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    return text_operations.join(context, context.text(d), [context.text(item) for item in items])


@pass_context
def _format(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("format takes values by position or by name, not both")
    return text_operations.format_percent(context, context.text(value), kwargs or args)


@pass_context
def _indent(context: RenderContext, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    context.budget.pad(len(width) if isinstance(width, str) else width)
    indention = width if isinstance(width, str) else " " * width
    lines = f"{context.text(value)}\n".splitlines()
    context.budget.make_text(sum(map(len, lines)) + (len(indention) + 1) * len(lines))
    indented = [indention + line if line or blank else line for line in lines]
    if not first:
        indented[0] = lines[0]
    elif not lines[0]:
        indented[0] = indention
    return context.derive((value, width), "\n".join(indented))


@pass_context
def _tojson(
    context: RenderContext,
    value: Any,
    ensure_ascii: bool = False,
    *,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Iterator):  # what `map` and its like make
        value = context.budget.listed(value)
    extent = context.check_printable(value)
    separator_chars = sum(map(len, separators)) if separators else 4
    indent_chars = 0 if indent is None else len(indent) if isinstance(indent, str) else indent
    if indent_chars > _MAX_INDENT:
        raise ValueError(f"tojson indents by at most {_MAX_INDENT} characters")
    context.budget.make_text(extent.chars + extent.nodes * (separator_chars + extent.depth * indent_chars))
    made = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return context.derive((value, indent, separators), context.guard.unescape(made))


@pass_context
def _list(context: RenderContext, value: Iterable[Any]) -> list[Any]:
    return context.budget.listed(value)


@pass_context
def _items(context: RenderContext, value: Mapping[Any, Any] | Undefined) -> Iterator[tuple[Any, Any]]:
    context.budget.make_items(len(value))
    items: Iterator[tuple[Any, Any]] = JINJA_FILTERS["items"](value)
    return items


@pass_context
def _reverse(context: RenderContext, value: Any) -> Any:
    items = value if isinstance(value, str) else context.budget.listed(value)
    return text_operations.cut(context, items, None, None, -1)


@pass_context
def _int(context: RenderContext, value: Any, default: int = 0, base: int = 10) -> int:
    number: int = JINJA_FILTERS["int"](value, default, base)
    if isinstance(number, int):
        context.budget.make_number(number.bit_length())
    return number


@pass_context
def _sum(context: RenderContext, value: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> float:
    items = context.budget.listed(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    if not all(isinstance(item, int | float) for item in [start, *items]):
        raise TypeError("sum adds numbers only")
    return sum(items, start)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > _MAX_ROUND_DIGITS:
        raise ValueError(f"round takes at most {_MAX_ROUND_DIGITS} digits")
    rounded: float = JINJA_FILTERS["round"](value, precision, method)
    return rounded


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    """Return a test that counts the comparison of its two values."""

    @pass_context
    def compared(context: RenderContext, value: Any, other: Any) -> bool:
        context.budget.walk(value, other)
        return compare(value, other)

    return compared


def _is_cased(test: Callable[[str], bool]) -> Callable[..., bool]:
    @pass_context
    def is_cased(context: RenderContext, value: Any) -> bool:
        return test(context.text(value))

    return is_cased


FILTERS: dict[str, Callable[..., Any]] = {
    **{
        name: JINJA_FILTERS[name]
        for name in ("abs", "attr", "count", "d", "default", "first", "float", "last", "length")
    },
    **{name: _one_by_one(JINJA_FILTERS[name]) for name in ("map", "reject", "rejectattr", "select", "selectattr")},
    "capitalize": _of_text(str.capitalize),
    "center": _center,
    "dictsort": _of_items(JINJA_FILTERS["dictsort"], is_pass_environment=False),
    "e": _of_text(_escape),
    "escape": _of_text(_escape),
    "format": _format,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "list": _list,
    "lower": _of_text(str.lower),
    "max": _of_items(JINJA_FILTERS["max"]),
    "min": _of_items(JINJA_FILTERS["min"]),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    # Nothing is escaped unless a template asks for it, so there is nothing to be kept from it.
    "safe": _string,
    "sort": _of_items(JINJA_FILTERS["sort"]),
    "string": _string,
    "sum": _sum,
    "title": _of_text(JINJA_FILTERS["title"], work_per_char=NODE_WORK),
    "tojson": _tojson,
    "trim": _trim,
    "unique": _of_items(JINJA_FILTERS["unique"]),
    "upper": _of_text(str.upper),
}

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "eq": operator.eq,
    "equalto": operator.eq,
    "!=": operator.ne,
    "ne": operator.ne,
    ">": operator.gt,
    "gt": operator.gt,
    "greaterthan": operator.gt,
    ">=": operator.ge,
    "ge": operator.ge,
    "<": operator.lt,
    "lt": operator.lt,
    "lessthan": operator.lt,
    "<=": operator.le,
    "le": operator.le,
    "in": lambda value, container: value in container,
}

_KEPT_TESTS: Mapping[str, Any] = JINJA_TESTS
TESTS: dict[str, Callable[..., Any]] = {
    **_KEPT_TESTS,
    **{name: _compared(compare) for name, compare in _COMPARISONS.items()},
    "lower": _is_cased(str.islower),
    "upper": _is_cased(str.isupper),
}
