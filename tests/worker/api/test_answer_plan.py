"""How the answers to one request come about: what they may be, what reads them, and what is said of them in the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from tests.support.held_answers import HERMES, THINKS, TOOL_MARKERS, SpeakingVocabulary, may_be
from worker.api.answer_plan import plan_answer, plan_text
from worker.api.answer_wishes import AnswerPlan, AnswerWishes
from worker.api.chat_prompt import ChatPrompt
from worker.api.output_format import choice_format, gbnf_format, json_schema_format, lark_format, regex_format
from worker.api.served import Envelope, ServedModel
from worker.chat.deltas import CallArguments, CallStart, Delta, PlainText, ReasoningDelta, TextDelta, text_of
from worker.chat.marks import marked
from worker.chat.tool_calls.tools import Demand, Tool, Tools
from worker.errors import RequestError, UnsupportedParameter

TOOL = Tool("now", None, {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]})
CALL = '«<tool_call>»\n{"name": "now", "arguments": {"zone": "CET"}}\n«</tool_call>»'
FORM = choice_format(["yes", "no"], param="choice")
LOOSE = {"type": "array", "uniqueItems": True}
TAGGED = "{# <tool_call>{{ tools }} <function= <parameter= #}"
"""Makes of any template one whose model has each parameter in tags."""
NO_MARKERS: tuple[str, ...] = ()


def model(source: str, markers: Sequence[str] | None = None) -> ServedModel:
    vocabulary = SpeakingVocabulary() if markers is None else SpeakingVocabulary(markers)
    return ServedModel("tiny", FakeEngine(vocabulary), vocabulary, **vocabulary.speaks(source))


def plan(
    wishes: AnswerWishes, source: str = "", *, markers: Sequence[str] | None = None, request: str = "r1", **prompt: Any
) -> AnswerPlan:
    served = model(source, markers)
    return plan_answer(served, wishes, ChatPrompt((1,), served.speech, **prompt), Envelope(request))


def tools(demand: Demand, *, is_parallel: bool = True) -> Tools:
    return Tools((TOOL,), demand, is_parallel)


def read(made: AnswerPlan, output: str, *, choice: int = 0, is_cut: bool = False) -> list[Delta]:
    parser = made.parser(choice)
    return [*parser.push(output), *parser.flush(is_cut=is_cut)]


def shown(written: str) -> str:
    """Return what a reader gets of an answer whose markers are tokens."""
    for text in (*TOOL_MARKERS, "<think>", "</think>"):
        written = written.replace(f"«{text}»", marked(text))
    return written


# --- what is asked of the engine ------------------------------------------------------------------------


def test_an_answer_of_which_nothing_is_asked_is_plain_text() -> None:
    made = plan(AnswerWishes(), HERMES)
    assert isinstance(made.parser(0), PlainText)
    assert (made.constraint, made.check, dict(made.markers)) == (None, None, {})


@pytest.mark.parametrize("markers", [None, NO_MARKERS], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("demand", "form", "right", "wrong"),
    [
        (Demand.NONE, FORM, ["yes", "no"], ["", "yess", CALL]),
        (Demand.AUTO, None, ["", "Hm.", CALL, "Hm." + CALL, CALL + "\n" + CALL], [CALL.replace("zone", "zon")]),
        (Demand.REQUIRED, None, [CALL, CALL + "\n" + CALL], ["", "Hm.", "Hm." + CALL]),
        (Demand.AUTO, FORM, ["yes", CALL], ["", "Hm.", "yes" + CALL]),
        (Demand.REQUIRED, FORM, [CALL], ["yes", ""]),
    ],
)
@pytest.mark.parametrize("thought", ["", "begun", "possible"])
def test_forms_calls_and_thoughts_go_together(
    thought: str, demand: Demand, form: Any, right: list[str], wrong: list[str], markers: Any
) -> None:
    source = HERMES + (THINKS if thought else "")
    vocabulary = SpeakingVocabulary() if markers is None else SpeakingVocabulary(markers)
    wishes = AnswerWishes(form, Tools() if demand is Demand.NONE else tools(demand))
    made = plan(wishes, source, markers=markers, is_in_thought=thought == "begun").constraint
    fronts = {
        "": [""],
        "begun": ["Hm.\n«</think>»\n\n", "«</think>»"],
        "possible": ["", "«<think>»\nHm.\n«</think>»\n\n", "\n«<think>»«</think>»"],
    }[thought]
    for front, output in product(fronts, right):
        assert may_be(made, front + output, vocabulary), (front, output)
    is_free = demand is Demand.AUTO and form is None
    for front, output in product(fronts, wrong):
        # Where markers are plain text, a call in a thought and one behind it look alike while they are written.
        if not (is_free and markers is not None and thought):
            assert not may_be(made, front + output, vocabulary), (front, output)


def test_calls_side_by_side_may_be_forbidden() -> None:
    made = plan(AnswerWishes(tools=tools(Demand.REQUIRED, is_parallel=False)), HERMES)
    assert may_be(made.constraint, CALL)
    assert not may_be(made.constraint, CALL + "\n" + CALL)


def test_each_answer_has_a_constraint_of_its_own() -> None:
    make = plan(AnswerWishes(FORM)).constraint
    assert make is not None
    first, second = make(), make()
    first.accept(ord("y"))
    assert (first.num_allowed(list(b"es")), second.num_allowed(list(b"es"))) == (2, 0)


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (json_schema_format({"type": "object", "required": ["a"]}, param="p"), '{"a": 1}', "{}"),
        (regex_format("[ab]/c", param="p"), "a/c", "c"),
        (gbnf_format('root ::= "a" b\nb ::= [0-9] | b [0-9]', param="p"), "a12", "a"),
        (lark_format('start: A "-" A\nA: /[0-9]{2}/', param="p"), "12-34", "12"),
        (lark_format('start: "x"\nr0: "y"\nTEXT: "z"', param="p"), "x", "y"),
    ],
)
def test_a_raw_prompt_is_gone_on_with_in_each_form(form: Any, right: str, wrong: str) -> None:
    made = plan_text(model(HERMES + THINKS), form)
    assert may_be(made.constraint, right)
    assert not may_be(made.constraint, wrong)
    assert not may_be(made.constraint, "«<think>»«</think>»" + right)
    assert isinstance(made.parser(0), PlainText)


def test_a_raw_prompt_without_a_form_is_free() -> None:
    assert plan_text(model(HERMES + THINKS), None).constraint is None


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "param"),
    [
        (lark_format("start: nobody", param="lark"), "lark"),
        (lark_format("begin: /a/", param="lark"), "lark"),
        (lark_format("start: (", param="response_format"), "response_format"),
    ],
)
def test_a_grammar_that_is_none_is_refused_by_its_field(form: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        plan(AnswerWishes(form))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert f"'{param}' cannot be enforced: line 1: " in caught.value.message or "no start rule" in caught.value.message


def test_tools_of_a_model_that_no_template_tells_of_are_refused() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        plan(AnswerWishes(tools=tools(Demand.AUTO), tools_param="functions"))
    assert caught.value.param == "functions"
    assert plan(AnswerWishes()).constraint is None


def test_a_budget_of_a_model_that_does_not_think_is_refused_by_its_field() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        plan(AnswerWishes(thought_budget=0, budget_param="thinking.budget_tokens"), HERMES)
    assert caught.value.param == "thinking.budget_tokens"


def test_a_tool_whose_parameter_the_form_of_calls_cannot_hold_is_refused_by_its_place() -> None:
    odd = Tool("f", None, {"type": "object", "properties": {"a>b": {}}}, place="tools[3].function.parameters")
    for tool, param in ((odd, odd.place), (Tool("f", None, odd.parameters), "functions")):
        with pytest.raises(RequestError) as caught:
            plan(AnswerWishes(tools=Tools((tool,), Demand.AUTO), tools_param="functions"), TAGGED)
        assert (caught.value.status, caught.value.param) == (400, param)
        assert "'f'" in caught.value.message
        assert "'a>b'" in caught.value.message
    assert plan(AnswerWishes(tools=Tools((odd,), Demand.AUTO)), HERMES).constraint is not None


# --- what reads answers ---------------------------------------------------------------------------------


def test_markers_are_shown_to_who_reads_them() -> None:
    assert set(plan(AnswerWishes(tools=tools(Demand.AUTO)), HERMES).markers) == set(TOOL_MARKERS)
    assert set(plan(AnswerWishes(), THINKS).markers) == {"<think>", "</think>"}
    assert set(plan(AnswerWishes(splits_thoughts=False), THINKS).markers) == {"<think>", "</think>"}
    assert not plan(AnswerWishes(tools=tools(Demand.AUTO)), HERMES, markers=NO_MARKERS).markers


def test_thoughts_text_and_calls_are_told_apart() -> None:
    made = plan(AnswerWishes(tools=tools(Demand.AUTO)), HERMES + THINKS)
    deltas = read(made, shown("«<think>»Hm«</think>»Look: " + CALL))
    assert [type(delta) for delta in deltas[:3]] == [ReasoningDelta, TextDelta, CallStart]
    assert "".join(one.text for one in deltas if isinstance(one, CallArguments)) == '{"zone": "CET"}'


def test_a_prompt_that_has_begun_a_thought_is_gone_on_with() -> None:
    deltas = read(plan(AnswerWishes(), THINKS, is_in_thought=True), shown("Hm«</think>»Yes"))
    assert deltas == [ReasoningDelta("Hm"), TextDelta("Yes")]


def test_calls_are_text_where_none_may_be_made() -> None:
    assert text_of(read(plan(AnswerWishes(), HERMES + THINKS), CALL)) == CALL


def test_ids_of_calls_differ_between_choices_and_requests_and_are_the_same_again() -> None:
    def ids(request: str, choice: int) -> list[str]:
        made = plan(AnswerWishes(tools=tools(Demand.AUTO)), HERMES, request=request)
        deltas = read(made, shown(CALL + "\n" + CALL), choice=choice)
        return [one.id for one in deltas if isinstance(one, CallStart)]

    told = [*ids("r1", 0), *ids("r1", 1), *ids("r2", 0)]
    assert len(told) == len(set(told)) == 6
    assert ids("r1", 0) == told[:2]


# --- what is checked ------------------------------------------------------------------------------------


def test_nothing_is_checked_that_was_enforced() -> None:
    assert plan(AnswerWishes(FORM, tools(Demand.AUTO)), HERMES).check is None


@pytest.mark.parametrize(
    ("deltas", "problem"),
    [
        ([TextDelta("[1, 2]")], None),
        ([ReasoningDelta("[1, 1]"), TextDelta("[1"), TextDelta(", 2]")], None),
        ([TextDelta("[1, 1]")], "The answer does not fit the schema"),
        ([TextDelta("[1, ")], "The answer is not JSON"),
        ([], "The answer is not JSON"),
        ([TextDelta("Look:"), CallStart(0, "c", "now"), CallArguments(0, '{"zone": "x"}')], None),
    ],
)
def test_a_form_that_is_not_enforced_as_a_whole_is_checked(deltas: list[Delta], problem: str | None) -> None:
    form = json_schema_format(LOOSE, param="format", relaxes=True)
    check = plan(AnswerWishes(form, tools(Demand.AUTO)), HERMES).check
    assert check is not None
    verdict = check(deltas)
    assert verdict is not None
    assert verdict.told["not_enforced"] == ["$.uniqueItems"]
    assert (verdict.problem is None) is (problem is None)
    assert verdict.told["is_valid"] is (problem is None)
    assert problem is None or (verdict.problem or "").startswith(problem)


def test_arguments_that_are_not_enforced_as_a_whole_are_checked_call_by_call() -> None:
    loose = Tool("f", None, {"type": "object", "properties": {"a": LOOSE}}, {"type": "object"})
    wishes = AnswerWishes(tools=Tools((loose, TOOL), Demand.AUTO), relaxed=("tools[0].parameters.properties.a",))
    check = plan(wishes, HERMES).check
    assert check is not None
    good: list[Delta] = [CallStart(0, "x", "f"), CallArguments(0, '{"a": '), CallArguments(0, "[1]}")]
    bad: list[Delta] = [CallStart(1, "y", "f"), CallArguments(1, '{"a": [1, 1]}')]
    said: list[Delta] = [TextDelta("no call")]
    for deltas in (good, said):
        verdict = check(deltas)
        assert verdict is not None
        assert verdict.problem is None
    wrong = check([*good, *bad])
    assert wrong is not None
    assert (wrong.problem or "").startswith("the arguments of 'f': ")


def call(arguments: str) -> list[Delta]:
    """Return a call that came in pieces."""
    return [CallStart(0, "x", "f"), *(CallArguments(0, piece) for piece in arguments)]


def many(*, is_strict: bool) -> Tools:
    schema = {"type": "object", "additionalProperties": {"type": "array"}, "minProperties": 1}
    return Tools((Tool("f", None, schema, is_strict=is_strict, place="tools[0].function.parameters"),), Demand.AUTO)


def test_strict_tools_whose_arguments_are_no_json_are_named_and_checked() -> None:
    check = plan(AnswerWishes(tools=many(is_strict=True)), TAGGED).check
    assert check is not None
    for deltas, is_valid in ((call('{"a": []}'), True), (call("{}"), False), ([TextDelta("no call")], True)):
        verdict = check(deltas)
        assert verdict is not None
        assert verdict.told["not_enforced"] == ["tools[0].function.parameters"]
        assert verdict.told["is_valid"] is is_valid


def test_other_tools_are_checked_there_and_only_told_of_where_something_is_wrong() -> None:
    check = plan(AnswerWishes(tools=many(is_strict=False)), TAGGED).check
    assert check is not None
    assert check(call('{"a": []}')) is None
    assert check([TextDelta("no call")]) is None
    verdict = check(call("{}"))
    assert verdict is not None
    assert (verdict.relaxed, (verdict.problem or "").startswith("the arguments of 'f': ")) == ((), True)


def test_calls_in_json_are_not_checked_again() -> None:
    assert plan(AnswerWishes(tools=many(is_strict=True)), HERMES).check is None
    none = Tools(many(is_strict=True).offered, Demand.NONE)
    assert plan(AnswerWishes(tools=none), TAGGED).check is None
