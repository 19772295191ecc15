"""What templates do to text: joining, replacing, padding, formatting, cutting.

Every operation counts its cost before it makes anything, and knows whether its result is client text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from jinja2.sandbox import SandboxedFormatter

from worker.chat.limits import MAX_WIDTH
from worker.chat.render_context import RenderContext

if TYPE_CHECKING:
    from jinja2 import Environment

_PARTS = frozenset(("lstrip", "rstrip", "strip", "removeprefix", "removesuffix"))
_SPLITS = frozenset(("partition", "rpartition", "rsplit", "split", "splitlines"))
_PADS = frozenset(("center", "ljust", "rjust", "zfill"))
_CASES = frozenset(("capitalize", "casefold", "lower", "swapcase", "title", "upper"))
_CHANGES = frozenset(("format", "format_map", "join", "replace"))
_SEARCHES = frozenset(("count", "endswith", "find", "index", "rfind", "rindex", "startswith"))
_TESTS = frozenset(name for name in dir(str) if name.startswith("is"))
TEXT_METHODS = _PARTS | _SPLITS | _PADS | _CASES | _CHANGES | _SEARCHES | _TESTS
"""Methods of text that templates may call."""

_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?")


@dataclass(frozen=True, slots=True)
class FormatMethod:
    """`text.format` or `text.format_map`, on its way to be called."""

    text: str
    is_map: bool


def call_method(
    context: RenderContext, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return what a method of a text, one of TEXT_METHODS, returns."""
    text: str = getattr(method, "__self__")  # noqa: B009  # a Callable has none as far as types are known
    name: str = getattr(method, "__name__")  # noqa: B009
    if name == "join" and len(args) == 1 and not kwargs:
        return join(context, text, args[0])
    if name == "replace" and not kwargs and all(isinstance(arg, str) for arg in args[:2]):
        return replace(context, text, *args)
    context.budget.spend(3 * len(text))
    context.budget.walk(args, kwargs)
    if name in _PADS:
        for arg in args:
            context.budget.pad(arg)
    result = method(*args, **kwargs)
    if isinstance(result, list):
        context.budget.make_items(len(result))
    if name in _PARTS or name in _SPLITS:
        return context.part(text, result)
    return context.derive((text, *args), result) if isinstance(result, str) else result


def concat(context: RenderContext, pieces: Iterable[Any]) -> str:
    """Return the pieces as one text."""
    texts = [context.text(piece) for piece in pieces]
    context.budget.make_text(sum(map(len, texts)))
    return context.guard.join(texts)


def join(context: RenderContext, separator: str, values: Iterable[Any]) -> str:
    """Return the texts of `values` with `separator` between them. Raises: TypeError for a value that is no text."""
    texts = context.budget.listed(values)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"a text is expected, not {type(text).__name__}")
    context.budget.make_text(sum(map(len, texts)) + len(separator) * len(texts))
    if not separator:
        return context.guard.join(texts)
    return context.guard.join(list(chain.from_iterable(zip(repeat(separator), texts)))[1:])


def replace(context: RenderContext, text: str, old: str, new: str, count: int = -1) -> str:
    """Return `text` with `new` for every `old`, for the first `count` of them if that is not negative."""
    if not old:
        context.budget.make_text((len(text) + 1) * (len(new) + 1))
        return context.derive((text, old, new), text.replace(old, new, count))
    context.budget.spend(len(text))
    num_found = text.count(old)
    context.budget.make_text(len(text) + num_found * len(new))
    context.budget.make_items(num_found)
    return join(context, new, context.part(text, text.split(old, count)))


def repeat_text(context: RenderContext, text: str, count: int) -> str:
    """Return `text` repeated."""
    context.budget.make_text(len(text) * max(count, 0))
    return context.derive((text,), text * count)


def cut(context: RenderContext, value: Any, start: Any, stop: Any, step: Any) -> Any:
    """Return `value[start:stop:step]`."""
    if isinstance(value, str | list | tuple):
        context.budget.spend(len(value))
    return value[start:stop:step]


def format_percent(context: RenderContext, text: str, args: Any) -> str:
    """Return `text % args`."""
    for found in _PERCENT.finditer(text):
        for number in found.groups():
            context.budget.pad(MAX_WIDTH + 1 if number == "*" else int((number or "0")[:9]))
    extent = context.check_printable(args)
    num_uses = text.count("%") if isinstance(args, Mapping) else 1
    context.budget.make_text(len(text) + num_uses * extent.chars)
    return context.derive((text, args), context.guard.unescape(text % args))


def format_braces(context: RenderContext, method: FormatMethod, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return `text.format(*args, **kwargs)` or `text.format_map(args[0])`."""
    values: tuple[Any, ...] = () if method.is_map else args
    names: Mapping[str, Any] = kwargs
    if method.is_map:
        if kwargs or len(args) != 1 or not isinstance(args[0], Mapping):
            raise TypeError("format_map() takes one map")
        names = args[0]
    context.budget.walk(values, names)
    context.budget.make_text(len(method.text))
    made = _Formatter(context.environment, context).vformat(method.text, values, names)
    return context.derive((method.text, values, names), made)


class _Formatter(SandboxedFormatter):
    """Formats with the sandbox's rules for attributes, and within the limits."""

    def __init__(self, environment: Environment, context: RenderContext) -> None:
        super().__init__(environment)
        self._context = context
        self._num_made = 0

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion in ("r", "a"):
            self._context.check_printable(value)
            return self._context.guard.unescape(super().convert_field(value, conversion))
        return self._context.text(value) if conversion == "s" else value

    def format_field(self, value: Any, format_spec: str) -> str:
        for number in re.findall(r"\d+", format_spec):
            self._context.budget.pad(int(number[:9]))
        made = format(value if isinstance(value, int | float) else self._context.text(value), format_spec)
        self._num_made += len(made)
        self._context.budget.check_text(self._num_made)
        self._context.budget.spend(len(made))
        return made
