"""Compiles and runs chat templates, which come with models and are strangers' programs.

Three walls: Jinja's sandbox (no private attributes), a short list of what may be called on texts, lists and maps (what
that can change are copies of this rendering's own), and a budget that every loop, call, operator and filter is charged
to. Jinja lets an environment intercept calls and arithmetic; what it does not let through there (loops, `~`, slices,
comparisons) is rewritten to filters of our own when the template is compiled.

Must not know messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import Template, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from worker.chat import text_operations
from worker.chat.client_text import ClientText, Guard
from worker.chat.errors import LimitExceeded, TemplateError
from worker.chat.filters import FILTERS, TESTS
from worker.chat.limits import Budget
from worker.chat.render_context import RenderContext
from worker.chat.text_operations import FormatMethod

MAX_SOURCE_CHARS = 256 * 1024
"""Of a template; the largest known ones have 40 thousand."""

FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    JinjaError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,  # RecursionError included
    StopIteration,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a faulty template can raise."""

_NOTHING: frozenset[str] = frozenset()
_READABLE: tuple[tuple[type, frozenset[str]], ...] = (
    (str, text_operations.TEXT_METHODS),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"append", "count", "index", "pop"})),
    (tuple, frozenset({"count", "index"})),
    (int, _NOTHING),
    (float, frozenset({"is_integer"})),
)
"""Attributes of values that a template may read."""
_SCALARS = (str, int, float, type(None))
_COMPARING = frozenset({"count", "index"})
"""Methods of lists that compare with every entry."""
_OPEN = (Namespace, LoopContext, Macro, Cycler, TemplateReference, BlockReference)
"""Jinja's own objects: every public attribute may be read. Of anything else, none."""


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, within limits."""

    context_class = RenderContext
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationBlocks],
            finalize=_printed,
            # Constants would be folded while the template is compiled, outside of every limit.
            optimized=False,
            cache_size=0,
        )
        self.filters = FILTERS | _REWRITTEN
        self.tests = dict(TESTS)
        range_ = self.globals["range"]  # the sandbox's own, which is bounded
        self.globals = {
            "range": range_,
            "dict": dict,
            "namespace": Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
        }

    @staticmethod
    def concat(pieces: Iterable[Any]) -> str:
        """Return the pieces that a block has printed as one text."""
        texts = list(pieces)
        for text in texts:
            if isinstance(text, ClientText):
                return text.guard.join(texts)
        return "".join(texts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read `obj.attr`."""
        for type_, readable in _READABLE:
            if isinstance(obj, type_):
                return attr in readable
        return isinstance(obj, _OPEN) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """Return what stands for the method if it is `format` or `format_map` of a text, else None."""
        if not isinstance(value, BuiltinMethodType) or value.__name__ not in ("format", "format_map"):
            return None
        text = value.__self__
        return FormatMethod(text, is_map=value.__name__ == "format_map") if isinstance(text, str) else None

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what calling `obj` returns."""
        assert isinstance(context, RenderContext)
        context.budget.spend()
        for name in ("_loop_vars", "_block_vars"):  # for callables that want a context of their own; none does
            kwargs.pop(name, None)
        if isinstance(obj, FormatMethod):
            return text_operations.format_braces(context, obj, args, kwargs)
        if isinstance(obj, Macro):
            return super().call(context, obj, *args, **kwargs)
        owner = obj.__self__ if isinstance(obj, BuiltinMethodType) else None
        if isinstance(owner, str):
            return text_operations.call_method(context, obj, args, kwargs)
        context.budget.walk(args, kwargs)
        if isinstance(owner, list) and obj.__name__ == "append" and not all(isinstance(one, _SCALARS) for one in args):
            raise TypeError("only texts and numbers can be appended: a list could become a part of itself")
        if isinstance(owner, list | tuple) and obj.__name__ in _COMPARING:
            context.budget.walk(owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return `left operator right`."""
        assert isinstance(context, RenderContext)
        budget = context.budget
        match operator, left, right:
            case "+", str(), str():
                return text_operations.concat(context, (left, right))
            case "*", str(), int():
                return text_operations.repeat_text(context, left, right)
            case "*", int(), str():
                return text_operations.repeat_text(context, right, left)
            case "%", str(), _:
                return text_operations.format_percent(context, left, right)
            case "+", list() | tuple(), list() | tuple():
                budget.make_items(len(left) + len(right))
            case ("*", list() | tuple() as items, int(count)) | ("*", int(count), list() | tuple() as items):
                budget.make_items(len(items) * max(count, 0))
            case "*", int(), int():
                budget.make_number(left.bit_length() + right.bit_length())
            case "**", int(), int():
                budget.make_number(left.bit_length() * max(right, 0))
            case _:
                pass
        return super().call_binop(context, operator, left, right)


class GenerationBlocks(Extension):
    """`{% generation %}` marks what training learns from; a prompt simply contains it."""

    tags = {"generation"}  # noqa: RUF012  # declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class SandboxedTemplate:
    """A compiled template. Raises: TemplateError, with the line, when it cannot be compiled."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(
                f"The chat template has {len(source)} characters, more than {MAX_SOURCE_CHARS} are not taken."
            )
        self._source = source
        environment = PromptEnvironment()
        self.global_names = frozenset(environment.globals)
        try:
            tree = environment.parse(source)
            self._template: Template = environment.from_string(_Rewriter().visit(tree))
        except TemplateSyntaxError as error:
            raise TemplateError(f"The chat template cannot be compiled, line {error.lineno}: {error.message}") from None
        except FAULTS as error:
            raise TemplateError(f"The chat template cannot be compiled: {_in_words(error)}") from None

    def reads(self, *names: str) -> bool:
        """Return whether it reads variables of all these names, which nothing in it sets."""
        if not all(name in self._source for name in names):  # what follows takes as long as compiling
            return False
        return find_undeclared_variables(PromptEnvironment().parse(self._source)).issuperset(names)

    def render(self, variables: dict[str, Any], guard: Guard, budget: Budget | None = None) -> str:
        """Return what the template prints, with the guard's marks in it.

        Raises: TemplateError, in the template's own words if it has any; LimitExceeded.
        """
        context = self._template.new_context(variables)
        assert isinstance(context, RenderContext)
        context.budget, context.guard = budget or Budget(), guard
        try:
            return PromptEnvironment.concat(self._template.root_render_func(context))
        except LimitExceeded:
            raise
        except TemplateError as error:
            raise TemplateError(guard.clean(error.message)) from None
        except FAULTS as error:
            raise TemplateError(
                f"The chat template failed on these messages{self._place_of(error)}: {guard.clean(_in_words(error))}"
            ) from None

    def _place_of(self, error: BaseException) -> str:
        """Return the template's line that raised `error`, in words; nothing where it is not known."""
        place = ""
        traceback = error.__traceback__
        while traceback is not None:
            if "__jinja_template__" in traceback.tb_frame.f_globals:
                place = f", line {self._template.get_corresponding_lineno(traceback.tb_lineno)}"
            traceback = traceback.tb_next
        return place


class _Rewriter(NodeTransformer):
    """Turns what the environment cannot intercept into filters that a template cannot name."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), " concat")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _counted(node.expr)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _counted(node.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _counted(node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            none = nodes.Const(None, lineno=node.lineno)
            return _filter(node.node, " cut", node.arg.start or none, node.arg.stop or none, node.arg.step or none)
        node.arg = _counted(node.arg)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        step = _filter(nodes.Const(True, lineno=node.lineno), " step")
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(step, node.test, lineno=node.lineno)
        return node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filter(node.filter, " printed")
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        # Printed like any value, so that it is counted like one.
        return nodes.Const(node.data, lineno=node.lineno)

    def _refuse(self, node: nodes.Node) -> NoReturn:
        raise TemplateSyntaxError("chat templates cannot use other templates or `autoescape`", node.lineno)

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse  # noqa: N815
    visit_ScopedEvalContextModifier = visit_EvalContextModifier = _refuse  # noqa: N815


def _filter(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _counted(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filter(node, " counted")


@pass_context
def _count(context: RenderContext, value: Any) -> Any:
    context.budget.walk(value)
    return value


@pass_context
def _step(context: RenderContext, value: bool) -> bool:
    context.budget.spend()
    return value


@pass_context
def _printed(context: RenderContext, value: Any) -> str:
    text = context.text(value)
    context.budget.print(len(text))
    return text


def _raise_exception(message: Any = "") -> NoReturn:
    raise TemplateError(str(message) or "The chat template refuses these messages and says no reason.")


_REWRITTEN: dict[str, Callable[..., Any]] = {
    " concat": pass_context(text_operations.concat),
    " cut": pass_context(text_operations.cut),
    " counted": _count,
    " printed": _printed,
    " step": _step,
}


def _in_words(error: BaseException) -> str:
    match error:
        case RecursionError():
            return "it is nested or recurses too deeply"
        case MemoryError():
            return "it needs too much memory"
        case KeyError():
            return f"there is no {error}"
        case _:
            return str(error) or type(error).__name__
