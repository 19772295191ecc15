"""Masks are those of brute force, whatever way led to them; and no grammar costs more than it may."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.small_vocabulary import FIRST_END, MARK, PIECES, SECOND_END, SPECIAL, ByteVocabulary, SmallVocabulary
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.engine import grammar as grammar_module
from worker.engine.constraint import Allowed, ConstraintFailed
from worker.engine.grammar import BURST_S, STEP_S, CompiledGrammar, GrammarRefused, Grammars, Matcher
from worker.schemas.prepare import prepare_schema

WORDS = ["".join(one) for size in (1, 2, 3) for one in itertools.product(["ab", "abc", "cd", "1", "12"], repeat=size)]
LANGUAGES: dict[str, list[str]] = {
    "start: /(ab|abc|cd|12?){1,3}/": WORDS,
    "start: w{1,3}\nw: W\nW: /ab|cd|12?/": [word for word in WORDS if "abc" not in word.replace("abcd", "")],
    'start: "abcda12"': ["abcda12"],
    'start: "a" ("b" "c"?)? | "dab" /[12]{2}/': ["a", "ab", "abc", *(f"dab{x}{y}" for x in "12" for y in "12")],
    'start: "" | "x" <[16]> "yz"': ["", "x\0yz"],
}
"""Grammars, and all texts of each; the marker is written as a zero."""

GRAMMARS = Grammars(SmallVocabulary(), SPECIAL)
BYTES = Grammars(ByteVocabulary(), ByteVocabulary.control_tokens)


def text_of(tokens: list[int]) -> str:
    return "".join("\0" if token == MARK else PIECES[token].decode() for token in tokens)


def expected_mask(language: list[str], tokens: list[int]) -> list[bool]:
    so_far = text_of(tokens)
    ends = so_far in language
    pieces = [*(piece.decode() for piece in PIECES), "", "\0"]
    mask = [bool(piece) and any(one.startswith(so_far + piece) for one in language) for piece in pieces]
    return [*mask[:FIRST_END], ends, mask[MARK], ends]


def as_lists(masks: list[Allowed]) -> list[list[bool]]:
    assert all(isinstance(mask, np.ndarray) for mask in masks)
    return [mask.tolist() for mask in masks if isinstance(mask, np.ndarray)]


def checked(source: str, matcher: Matcher, tokens: list[int]) -> list[bool]:
    """Return the mask after `tokens`, which is that of brute force. Where a text is certain, it is its usual token."""
    (mask,) = as_lists(matcher.allowed(()))
    expected = expected_mask(LANGUAGES[source], tokens)
    if forced := matcher.forced(1):
        assert mask == [token == forced[0] for token in range(len(mask))]
        certain = text_of([*tokens, *forced])
        assert all(one.startswith(certain) for one in LANGUAGES[source] if one.startswith(text_of(tokens)))
    else:
        assert mask == expected
    return mask


def after(source: str, tokens: list[int]) -> Matcher:
    matcher = GRAMMARS.compile(source).start()
    for token in tokens:
        matcher.accept(token)
    return matcher


def test_two_end_tokens_are_both_allowed_where_a_text_may_end() -> None:
    matcher = GRAMMARS.compile('start: "a" "b"?').start()
    matcher.accept(PIECES.index(b"a"))
    (mask,) = as_lists(matcher.allowed(()))
    assert [token for token, may_come in enumerate(mask) if may_come] == [1, FIRST_END, SECOND_END]


@settings(max_examples=100, deadline=None)
@given(source=st.sampled_from(sorted(LANGUAGES)), data=st.data())
def test_masks_on_any_way_through_a_grammar_are_those_of_brute_force(source: str, data: st.DataObject) -> None:
    matcher = GRAMMARS.compile(source).start()
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(0, 25))):
        mask = checked(source, matcher, tokens)
        goes_on = [token for token, may_come in enumerate(mask) if may_come and token not in SmallVocabulary.eog]
        if tokens and (not goes_on or data.draw(st.integers(0, 4)) == 0):
            count = data.draw(st.integers(1, len(tokens)))
            matcher.rollback(count)
            del tokens[-count:]
        elif goes_on:
            tokens.append(data.draw(st.sampled_from(goes_on)))
            matcher.accept(tokens[-1])
            text = text_of(tokens)
            assert matcher.is_over == all(one == text for one in LANGUAGES[source] if one.startswith(text))


@settings(max_examples=100, deadline=None)
@given(
    source=st.sampled_from(sorted(LANGUAGES)),
    picks=st.lists(st.integers(0, 30), max_size=9),
    num_taken=st.integers(0, 3),
    wrong=st.integers(0, 9),
)
def test_masks_behind_drafts_are_those_without_drafts_and_leave_no_trace(
    source: str, picks: list[int], num_taken: int, wrong: int
) -> None:
    way: list[int] = []
    for pick in picks:
        (mask,) = as_lists(after(source, way).allowed(()))
        if not (goes_on := [token for token in range(FIRST_END) if mask[token]]):
            break
        way.append(goes_on[pick % len(goes_on)])
    taken, drafts = way[:num_taken], way[num_taken:]
    expected = [
        checked(source, after(source, [*taken, *drafts[:count]]), [*taken, *drafts[:count]])
        for count in range(len(drafts) + 1)
    ]
    if wrong < len(drafts):
        may_not_come = next(
            token for token in range(FIRST_END) if not expected_mask(LANGUAGES[source], way[: num_taken + wrong])[token]
        )
        drafts[wrong:] = [may_not_come, *drafts[wrong:]]
        del expected[wrong + 1 :]
    matcher = after(source, taken)
    assert matcher.num_allowed(drafts) == len(expected) - 1
    assert as_lists(matcher.allowed(drafts)) == expected
    assert as_lists(matcher.allowed(())) == expected[:1]


@pytest.mark.parametrize("source", sorted(LANGUAGES))
def test_what_is_forced_is_allowed(source: str) -> None:
    matcher = GRAMMARS.compile(source).start()
    forced = list(matcher.forced(50))
    assert matcher.num_allowed(forced) == len(forced)
    assert forced or source != 'start: "abcda12"'
    assert list(matcher.forced(1)) == forced[:1]


def test_a_token_that_may_not_come_ends_the_answer_and_no_other_of_the_same_grammar() -> None:
    compiled = GRAMMARS.compile('start: "ab"')
    broken, other = compiled.start(), compiled.start()
    with pytest.raises(ConstraintFailed):
        broken.accept(PIECES.index(b"x"))
    other.accept(PIECES.index(b"ab"))
    assert other.is_over


def test_a_marker_in_a_text_is_no_token_of_it() -> None:
    matcher = GRAMMARS.compile(r"start: /(.|\n)*/").start()
    (mask,) = as_lists(matcher.allowed(()))
    assert all(mask[:FIRST_END])
    assert not mask[MARK]


def test_a_grammar_is_compiled_once_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "MAX_KEPT", 2)
    grammars = Grammars(SmallVocabulary(), SPECIAL)
    first, second = grammars.compile('start: "a"'), grammars.compile('start: "b"')
    assert grammars.compile('start: "a"') is first
    grammars.compile('start: "c"')
    assert grammars.compile('start: "a"') is first
    assert grammars.compile('start: "b"') is not second


def test_threads_that_compile_at_the_same_time_get_the_same_grammar() -> None:
    grammars = Grammars(SmallVocabulary(), SPECIAL)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(grammars.compile, ['start: "a"', 'start: "b"'] * 8))
    assert len({id(one) for one in found}) == 2


def test_answers_that_use_up_the_states_of_their_grammar_together_get_states_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["a", "b", "c", "d"]
    limits = {name: {"type": "string", "maxLength": 200 + index} for index, name in enumerate(names)}
    schema = {"type": "object", "properties": limits, "required": names, "additionalProperties": False}
    writer = GrammarWriter(Markers())
    source = writer.grammar(writer.schema(prepare_schema(schema, param="schema").schema))
    monkeypatch.setattr(grammar_module, "LIMITS", {**grammar_module.LIMITS, "max_lexer_states": 3_000})
    grammars = Grammars(ByteVocabulary(), ByteVocabulary.control_tokens)
    compiled = grammars.compile(source)
    for long in names:
        answer = json.dumps({name: "x" * 150 if name == long else "y" for name in names}).encode()
        matcher = compiled.start()
        for token in answer:
            (mask,) = as_lists(matcher.allowed(()))
            assert mask[token]
            matcher.accept(token)
        matcher.rollback(3)
        for token in answer[-3:]:
            matcher.accept(token)
        assert matcher.is_over
    assert grammars.compile(source) is not compiled


# --- what a client can do wrong ---------------------------------------------------------------------------


def doubled(times: int) -> str:
    return "\n".join(["start: R0", *(f"R{i}: R{i + 1} R{i + 1}" for i in range(times)), f'R{times}: "ab"'])


def optional_properties(count: int) -> str:
    properties = {f"k{i}": {"type": "integer"} for i in range(count)}
    return "start: %json " + json.dumps({"type": "object", "properties": properties})


REFUSED: dict[str, Callable[[], str]] = {
    "exponential terminals": lambda: doubled(25),
    "exponential regexes": lambda: "start: X\nX: " + " & ".join(f"/.*[{chr(97 + i)}].{{{8 + i}}}/" for i in range(12)),
    "a chain of rules": lambda: "\n".join(["start: r0", *(f'r{i}: r{i + 1} | "a"' for i in range(5000)), 'r5000: "b"']),
    "nested brackets": lambda: "start: " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "nested brackets of a regex": lambda: "start: /" + "(" * 100_000 + "a" + ")" * 100_000 + "/",
    "nested JSON": lambda: "start: %json " + '{"items":' * 5000 + "{}" + "}" * 5000,
    "70,000 literals": lambda: "start: " + " | ".join(f'"{i * 7919 % 1000003}"' for i in range(70_000)),
    "20,000 optional properties": lambda: optional_properties(20_000),
    "5 MB": lambda: 'start: "' + "a" * 5_000_000 + '"',
    "nothing": lambda: "",
    "no grammar": lambda: "this is no grammar",
    "a token beyond the vocabulary": lambda: "start: <[99999999]>",
    "a range the wrong way": lambda: "start: <[5-1]>",
    "a rule of itself alone": lambda: "start: x\nx: x",
    "a panic of the library": lambda: 'start: p::0x0\np::_: "" p::set_bit(0) %if bit_clear(0) | /[b-z]+/ p::set_bit(1)',
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_grammar_that_costs_too_much_or_is_none_is_refused_in_a_line(name: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        GRAMMARS.compile(REFUSED[name]())
    assert str(caught.value)
    assert re.fullmatch(r".{1,400}", str(caught.value)), "one line, which tells and does not echo"


def test_the_next_grammar_is_compiled_after_one_that_has_killed_its_trial() -> None:
    grammars = Grammars(SmallVocabulary(), SPECIAL)
    with pytest.raises(GrammarRefused, match="nested too deeply"):
        grammars.compile(REFUSED["a chain of rules"]())
    with pytest.raises(GrammarRefused, match=r"more than a second|too big"):  # whichever limit is reached first
        grammars.compile(doubled(25))
    assert grammars.compile('start: "ab"').start().allowed(())


USABLE: dict[str, Callable[[], str]] = {
    "many numbers": lambda: 'start: %json {"type":"array","items":{"type":"number"},"minItems":10,"maxItems":1000}',
    "long repetition": lambda: "start: /a{1000,100000}/",
    "exponential backtracking": lambda: "start: /(a|aa)*b/",
    "thirty optional texts": lambda: "start: " + " ".join(['"a"?'] * 30),
    "itself on both sides": lambda: 'start: x\nx: x x | "a" | ""',
    "many properties": lambda: optional_properties(300),
    "a thousand choices": lambda: "start: " + " | ".join(f'"a{i}"' for i in range(1024)),
    "text up to many triggers": lambda: (
        "start: t*\nt[lazy]: /(.|\\n)*/ (" + " | ".join(f'"a{i}"' for i in range(500)) + ")"
    ),
}


@pytest.mark.parametrize("name", USABLE)
def test_a_grammar_that_only_looks_costly_can_be_followed(name: str) -> None:
    matcher = BYTES.compile(USABLE[name]()).start()
    for _ in range(20):
        (mask,) = as_lists(matcher.allowed(()))
        assert any(mask)
        token = next(token for token, may_come in enumerate(mask) if may_come)
        if token in ByteVocabulary.eog or matcher.is_over:
            break
        matcher.accept(token)


def take(cpu_s: float) -> None:
    """Use a processor for so long."""
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


class Busy:
    """A library that takes 20 ms of a processor for each mask, and 4 for each token."""

    num_masks = 0

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        self.num_masks += 1
        take(0.02)

    def consume_token(self, token: int) -> bool:
        take(0.004)
        return True

    def is_error(self) -> bool:
        return False


def test_an_answer_ends_whose_grammar_takes_too_long_for_each_token() -> None:
    busy = Busy()
    matcher = Matcher(busy, 18)  # type: ignore[arg-type]

    def go_on() -> None:
        for _ in range(100):
            matcher.allowed(())

    with pytest.raises(ConstraintFailed, match="too much time"):
        go_on()
    assert 2 <= busy.num_masks <= BURST_S / (0.02 - STEP_S) + 1, "only what is too much in the long run"


def test_an_answer_that_goes_on_has_for_its_beginning_the_time_that_it_had_for_it() -> None:
    matcher = Matcher(Busy(), 18)  # type: ignore[arg-type]
    for _ in range(2 * round(BURST_S / 0.004)):
        matcher.accept(1)


class PanicException(BaseException):
    """What a panic of Rust looks like in Python: a class that cannot be imported."""


class Panicking:
    """A library that has found a fault in itself."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def panic(*args: object) -> None:
            raise PanicException("called `Option::unwrap()` on a `None` value")

        return panic


@pytest.mark.parametrize(
    "use",
    [
        lambda matcher: matcher.allowed(()),
        lambda matcher: matcher.accept(1),
        lambda matcher: matcher.rollback(1),
        lambda matcher: matcher.forced(3),
        lambda matcher: matcher.num_allowed([1]),
    ],
)
def test_a_panic_of_the_library_is_the_end_of_one_answer(use: Callable[[Matcher], object]) -> None:
    with pytest.raises(ConstraintFailed):
        use(Matcher(Panicking(), 18))  # type: ignore[arg-type]
    with pytest.raises(ConstraintFailed):
        CompiledGrammar(Panicking(), 18).start()  # type: ignore[arg-type]


def test_an_interrupt_is_not_taken_for_a_panic() -> None:
    class Interrupted:
        def rollback(self, count: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Matcher(Interrupted(), 18).rollback(1)  # type: ignore[arg-type]


MCP_SCHEMAS: dict[str, dict[str, Any]] = {
    "not: {}": {"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "string"}}},
    "a reference into a list": {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "b": {"$ref": "#/properties/a/anyOf/0"},
        },
        "required": ["b"],
    },
    "classes in a pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^\\d{3}-\\w+\\s?$"}}},
    "formats": {
        "type": "object",
        "properties": {name: {"type": "string", "format": name} for name in ("date-time", "uri", "email", "made-up")},
    },
    "unions": {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "number", "null"]},
            "b": {"oneOf": [{"const": 1}, {"enum": ["x", None]}]},
        },
    },
    "itself": {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "$ref": "#/$defs/node",
    },
}


@pytest.mark.parametrize("name", MCP_SCHEMAS)
def test_a_schema_as_real_tools_have_it_is_enforced_as_a_whole(name: str) -> None:
    prepared = prepare_schema(MCP_SCHEMAS[name], param="tools")
    assert not prepared.relaxed
    matcher = BYTES.compile(f"start: {GrammarWriter(Markers()).schema(prepared.schema)}").start()
    (mask,) = as_lists(matcher.allowed(()))
    assert np.flatnonzero(mask).tolist() == [ord("{")]
