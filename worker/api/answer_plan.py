"""From what a request wants to what the engine holds its answers to, what reads them, and what checks them.

Owns how tools, forms and thoughts go together. The same for every dialect. Must not read bodies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from worker.api.answer_wishes import AnswerPlan, AnswerWishes, Check, Verdict
from worker.api.chat_prompt import ChatPrompt
from worker.api.output_format import OutputFormat, told_of
from worker.api.served import Envelope, ServedModel
from worker.api.speech import Speech
from worker.chat.answer_reader import AnswerForm, AnswerReader
from worker.chat.deltas import CallArguments, CallStart, Delta, OutputParser, PlainText, text_of
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.tools import Demand
from worker.engine.constraint import Constraint, MakeConstraint
from worker.engine.grammar import GrammarRefused, GrammarsUnavailable
from worker.engine.thought_budget import BudgetedThoughts, ThoughtBudget
from worker.errors import GrammarsMissing, RequestError, UnsupportedParameter
from worker.schemas.check import problem_of


def plan_answer(model: ServedModel, wishes: AnswerWishes, prompt: ChatPrompt, envelope: Envelope) -> AnswerPlan:
    """Return the plan. Raises: RequestError, naming the field of what cannot be enforced."""
    speech, tools = prompt.speech, wishes.tools
    family = speech.family
    if family is None and tools.demand is not Demand.NONE:
        raise UnsupportedParameter(
            f"'{wishes.tools_param}' cannot be used: model '{model.name}' has no chat template that could show them.",
            param=wishes.tools_param,
        )
    if family is not None:
        _require_readable(family, wishes)
    grammar = _grammar(wishes, prompt)
    make = None if grammar is None else _compiled(model, grammar, wishes)
    return AnswerPlan(
        _parser(wishes, prompt, envelope),
        _shown(wishes, speech),
        _with_budget(model, wishes, prompt, make),
        _check(wishes, prompt),
    )


def _require_readable(family: Family, wishes: AnswerWishes) -> None:
    """Raises: RequestError for a tool that cannot be called in the family's form."""
    for tool in wishes.tools.offered:
        if (problem := family.problem_with(tool)) is not None:
            raise RequestError(
                f"The tool {tool.name!r} cannot be called by this model: {problem}. Rename it.",
                param=tool.place or wishes.tools_param,
            )


def plan_text(model: ServedModel, format_: OutputFormat | None) -> AnswerPlan:
    """Return the plan of answers that go on with a raw prompt: text without thoughts or calls, in this form.

    Raises: RequestError, naming the field of what cannot be enforced.
    """
    raw = ChatPrompt((), Speech(markers=model.speech.markers))
    return plan_answer(model, AnswerWishes(format_), raw, Envelope())


def _parser(wishes: AnswerWishes, prompt: ChatPrompt, envelope: Envelope) -> Callable[[int], OutputParser]:
    speech = prompt.speech
    tags = speech.tags if wishes.splits_thoughts else None
    family = _reading_family(wishes, speech)
    if tags is None and family is None and not _shown(wishes, speech):
        return lambda choice: PlainText()
    starts_inside = tags is not None and prompt.is_in_thought

    def make(choice: int) -> OutputParser:
        make_id = partial(_call_id, family, f"{envelope.request_id}/{choice}")
        return AnswerReader(AnswerForm(speech.markers, tags, starts_inside, family, wishes.tools, make_id))

    return make


def _reading_family(wishes: AnswerWishes, speech: Speech) -> Family | None:
    """Return the family that reads the answer: where there can be calls, or where answers hold more than their text."""
    family = speech.family
    if family is None or wishes.tools.demand is not Demand.NONE:
        return family
    return family if family.wraps_answers and wishes.splits_thoughts else None


def _shown(wishes: AnswerWishes, speech: Speech) -> Mapping[str, int]:
    """Return the special tokens that are shown: those of thoughts also where they are left in the text."""
    wraps = speech.family is not None and speech.family.wraps_answers
    if wishes.tools.demand is Demand.NONE and speech.thought_tags is None and not wraps:
        return {}
    return speech.shown()


def _call_id(family: Family | None, key: str, index: int, name: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return f"call_{digest[:22]}{index:02d}" if family is None else family.call_id(digest, index, name)


# --- what is enforced -------------------------------------------------------------------------------------


def _grammar(wishes: AnswerWishes, prompt: ChatPrompt) -> str | None:
    """Return the grammar of an answer, thoughts included; None = anything goes."""
    speech = prompt.speech
    write = GrammarWriter(speech.markers)
    body = _body(wishes, speech.family, write)
    if body is None:
        return None
    if speech.tags is not None and (prompt.is_in_thought or not prompt.has_thought):
        body = _with_thoughts(write, speech.tags, body, is_inside=prompt.is_in_thought)
    return write.grammar(body)


def _body(wishes: AnswerWishes, family: Family | None, write: GrammarWriter) -> str | None:
    """Return the expression of an answer without the thoughts that tags tell apart."""
    text = None if wishes.format is None else write.rule(wishes.format.write(write))
    demand = wishes.tools.demand
    if family is None or demand is Demand.NONE:
        return None if text is None else write.rule(text if family is None else family.answer(write, text))
    if demand is Demand.REQUIRED:
        return write.rule(family.required_calls(write, wishes.tools))
    if text is None:
        return write.rule(family.free_calls(write, wishes.tools))
    return write.any_of([family.required_calls(write, wishes.tools), family.answer(write, text)])


def _with_thoughts(write: GrammarWriter, tags: Tags, body: str, *, is_inside: bool) -> str:
    """Return the expression of thoughts and what comes behind them."""
    behind = write.regex(r"[ \t\r\n]{0,4}")
    rest = f"{write.text_before(tags.close)} {behind} {body}"
    return rest if is_inside else write.any_of([body, f"{behind} {write.marker(tags.open)} {rest}"])


def _compiled(model: ServedModel, grammar: str, wishes: AnswerWishes) -> MakeConstraint:
    param = wishes.tools_param if wishes.format is None else wishes.format.param
    try:
        return model.grammars.compile(grammar).start
    except GrammarsUnavailable as trouble:
        raise GrammarsMissing(f"'{param}' cannot be enforced now: {trouble}. Please try again.") from None
    except GrammarRefused as refusal:
        raise RequestError(
            f"'{param}' cannot be enforced: {told_of(wishes.format, str(refusal))}.", param=param
        ) from None


def _with_budget(
    model: ServedModel, wishes: AnswerWishes, prompt: ChatPrompt, make: MakeConstraint | None
) -> MakeConstraint | None:
    num_tokens, tags = wishes.thought_budget, prompt.speech.thought_tags
    if num_tokens is None:
        if tags is None or not prompt.ends_thoughts:
            return make
        num_tokens = 0
    if tags is None:
        raise UnsupportedParameter(
            f"'{wishes.budget_param}' has no effect on model '{model.name}': it does not think before it answers, or "
            "not in a way that its chat template shows. Leave the field out.",
            param=wishes.budget_param,
        )
    vocabulary = model.vocabulary
    budget = ThoughtBudget(
        num_tokens,
        tags.open.encode(),
        tags.close.encode(),
        tuple(vocabulary.tokenize(tags.ending, add_special=False, parse_special=True)),
        prompt.is_in_thought,
    )

    def budgeted() -> Constraint:
        rest = None if make is None else make()
        return BudgetedThoughts(budget, partial(vocabulary.piece, special=True), rest)

    return budgeted


# --- what is checked --------------------------------------------------------------------------------------


def _check(wishes: AnswerWishes, prompt: ChatPrompt) -> Check | None:
    format_ = wishes.format
    relaxed = (*wishes.relaxed, *(() if format_ is None else format_.relaxed))
    family, offered = prompt.speech.family, wishes.tools.offered
    is_loose = family is not None and not family.is_exact and wishes.tools.demand is not Demand.NONE
    if is_loose:
        relaxed += tuple(tool.place or wishes.tools_param for tool in offered if tool.is_strict)
    if not relaxed and not (is_loose and offered):
        return None
    tags = None if wishes.splits_thoughts else prompt.speech.tags
    read = text_of if tags is None else partial(_text_behind_thoughts, tags, prompt.is_in_thought)
    return partial(_verdict, wishes, relaxed, read)


def _text_behind_thoughts(tags: Tags, is_inside: bool, deltas: Sequence[Delta]) -> str:
    """Return the text of an answer in which thoughts were left, without these."""
    text = text_of(deltas)
    if not is_inside and not text.lstrip().startswith(tags.open):
        return text
    return text.partition(tags.close)[2]


def _verdict(
    wishes: AnswerWishes, relaxed: tuple[str, ...], read: Callable[[Sequence[Delta]], str], deltas: Sequence[Delta]
) -> Verdict | None:
    """Return what is said of an answer; None where nothing is wrong with it, and nothing was left to the model that
    the request demands."""
    problems: list[str | None] = []
    arguments: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for delta in deltas:
        if isinstance(delta, CallStart):
            names[delta.index], arguments[delta.index] = delta.name, []
        elif isinstance(delta, CallArguments):
            arguments[delta.index].append(delta.text)
    by_name = wishes.tools.by_name
    for index, pieces in arguments.items():
        if (problem := problem_of(by_name[names[index]].parameters, "".join(pieces))) is not None:
            problems.append(f"the arguments of {names[index]!r}: {problem}")
    if wishes.format is not None and wishes.format.relaxed and not arguments:
        problems.append(problem_of(wishes.format.schema, read(deltas)))
    problem = next((one for one in problems if one is not None), None)
    return Verdict(relaxed, problem) if relaxed or problem is not None else None
