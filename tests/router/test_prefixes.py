"""Beginnings of conversations as numbers: equal for equal beginnings, and for those alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prefixes import MAX_BYTES, MAX_PREFIXES, MIN_BYTES, continued, prefix_hashes

LONG = "x" * MIN_BYTES


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    roles = ("system", *("user", "assistant") * len(texts))
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)], **fields}


def common(a: dict[str, Any], b: dict[str, Any], salts: tuple[str, str] = ("", "")) -> int:
    """Return how many beginnings two requests share; they must be the shortest of both."""
    first, second = prefix_hashes(a, salts[0]), prefix_hashes(b, salts[1])
    shared = set(first) & set(second)
    assert set(first[: len(shared)]) == shared == set(second[: len(shared)])
    return len(shared)


def test_a_conversation_that_goes_on_has_all_beginnings_of_what_came_before() -> None:
    first = chat(LONG, "a")
    later = chat(LONG, "a", "b", "c")
    assert len(prefix_hashes(first)) == 2
    assert common(first, later) == 2
    assert len(prefix_hashes(later)) == 4


def test_conversations_share_what_they_have_in_common_and_no_more() -> None:
    assert common(chat(LONG, "a", "b"), chat(LONG, "a", "c")) == 2
    assert common(chat(LONG, "a"), chat(LONG, "b")) == 1
    assert common(chat(LONG + "1", "a"), chat(LONG + "2", "a")) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [{"type": "function"}]},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"lora": [{"id": 0}]},
        {"functions": [{"name": "f"}]},
    ],
)
def test_what_stands_before_the_messages_belongs_to_every_beginning(change: dict[str, Any]) -> None:
    assert common(chat(LONG, "a"), chat(LONG, "a", **change)) == 0


def test_a_system_prompt_beside_the_messages_is_a_beginning_of_its_own() -> None:
    def agent(*blocks: str, text: str = "a") -> dict[str, Any]:
        return chat("", text) | {"system": [{"type": "text", "text": block} for block in blocks]}

    assert common(agent(LONG), agent(LONG, text="b")) == 2, "the system prompt and the first message"
    assert common(agent(LONG), agent(LONG + "1")) == 0
    assert common(agent(LONG, "x"), agent(LONG, "y")) == 1
    assert common(chat("", "a", system=LONG), chat("", "b", system=LONG)) == 2


@pytest.mark.parametrize("as_text", [True, False])
def test_a_line_that_is_another_one_each_time_changes_no_beginning(as_text: bool) -> None:
    def agent(nonce: str) -> dict[str, Any]:
        header = f"x-anthropic-billing-header: cch={nonce};"
        blocks = [{"type": "text", "text": text} for text in (header, LONG)]
        return chat(LONG, "a", system=f"{header}\nBe brief." if as_text else blocks)

    assert common(agent("aaa"), agent("bbb")) == len(prefix_hashes(agent("aaa"))) > 0
    kept = [prefix_hashes(agent(nonce), drops_billing_header=False) for nonce in ("aaa", "bbb")]
    assert not set(kept[0]) & set(kept[1]), "a model that keeps the line has another prompt each time"


def test_what_follows_that_line_counts_as_much_as_without_it() -> None:
    def agent(system: Any) -> dict[str, Any]:
        return chat("", "a") | {"system": system}

    header = "x-anthropic-billing-header: cch=1;"
    assert common(agent(f"{header}\n\n{LONG}"), agent(LONG)) == 3
    assert common(agent(f"{header}\n{LONG}1"), agent(f"{header}\n{LONG}2")) == 0
    blocks = [{"type": "text", "text": text} for text in (header, f"{header}\n{LONG}")]
    assert common(agent(blocks), agent(blocks[1:])) == 3


def test_marks_that_move_as_a_conversation_grows_change_no_beginning() -> None:
    def part(text: str, **more: Any) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text, **more}]

    mark = {"cache_control": {"type": "ephemeral"}}
    first = {"messages": [{"role": "user", "content": part(LONG, **mark)}]}
    later = {"messages": [{"role": "user", "content": part(LONG)}, {"role": "user", "content": part("b", **mark)}]}
    assert common(first, later) == 1


def test_fields_that_do_not_change_the_prompt_change_no_beginning() -> None:
    assert common(chat(LONG, "a"), chat(LONG, "a", temperature=1, stream=True, max_tokens=5)) == 2


def test_requests_of_different_salts_have_nothing_in_common() -> None:
    request = chat(LONG, "a", prompt_cache_key="k")
    assert common(request, request, ("one", "two")) == 0
    assert common(request, request, ("one", "one")) == 3


def test_the_key_of_a_conversation_counts_most_and_needs_no_length() -> None:
    (key,) = prefix_hashes(chat("hi", prompt_cache_key="mine"))
    assert prefix_hashes({"prompt_cache_key": "mine"}) == (key,)
    assert prefix_hashes(chat(LONG, "a", prompt_cache_key="mine"))[-1] == key
    assert prefix_hashes({"prompt_cache_key": "other"}) != (key,)
    assert prefix_hashes({"prompt_cache_key": ""}) == prefix_hashes({"prompt_cache_key": 7}) == ()


def test_short_beginnings_are_not_worth_a_choice() -> None:
    assert prefix_hashes(chat("You are a helpful assistant.", "hi")) == ()
    assert len(prefix_hashes(chat("You are a helpful assistant.", LONG))) == 1


@pytest.mark.parametrize("size", [MIN_BYTES, 5000, 100_000])
def test_a_text_is_cut_at_powers_of_two_and_at_its_end(size: int) -> None:
    hashes = prefix_hashes({"prompt": "y" * size})
    longer = prefix_hashes({"prompt": "y" * size + "z" * size})
    shared = set(hashes) & set(longer)
    whole_cuts = sum(MIN_BYTES * 2**power <= size for power in range(20))
    assert len(shared) == whole_cuts
    assert set(longer[: len(shared)]) == shared


def test_prompts_of_tokens_are_cut_as_well() -> None:
    tokens = list(range(1000, 3000))
    assert common({"prompt": tokens}, {"prompt": [*tokens[:1000], 1, *tokens]}) >= 4
    assert prefix_hashes({"prompt": ["a" * 1000, "b"]}) == (), "several prompts are no conversation"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": []},
        {"messages": None},
        {"messages": "x" * 999},
        {"prompt": None},
        {"prompt": []},
        {"input": LONG},
    ],
)
def test_what_is_no_conversation_has_no_beginnings(fields: dict[str, Any]) -> None:
    assert prefix_hashes(fields) == ()


@pytest.mark.parametrize("content", [None, 7, [{"type": "text", "text": LONG}], {"a": LONG}, "é😀"])
def test_messages_may_be_anything_that_json_can_say(content: Any) -> None:
    hashes = prefix_hashes({"messages": [{"role": "user", "content": LONG}, content, {"content": content}]})
    assert all(0 <= one < 2**64 for one in hashes)


def test_of_many_messages_the_shortest_and_the_longest_beginnings_are_kept() -> None:
    texts = [LONG, *(str(number) for number in range(200))]
    hashes = prefix_hashes(chat(*texts))
    assert len(hashes) == MAX_PREFIXES
    assert hashes[0] == prefix_hashes(chat(LONG))[0]
    assert hashes[-1] == prefix_hashes(chat(*texts[:-1]))[-1] or hashes[-2] == prefix_hashes(chat(*texts[:-1]))[-1]
    assert len(prefix_hashes(chat(*texts, prompt_cache_key="k"))) == MAX_PREFIXES


def test_what_lies_far_behind_is_not_looked_at() -> None:
    huge = chat(*(["m" * 10_000] * 2000))
    started = time.perf_counter()
    hashes = prefix_hashes(huge)
    assert time.perf_counter() - started < 0.2
    assert len(hashes) <= MAX_BYTES // 10_000 + 1


@given(st.lists(st.text(max_size=300), max_size=6), st.lists(st.text(max_size=300), max_size=3))
def test_more_messages_never_change_the_beginnings_before_them(texts: list[str], more: list[str]) -> None:
    hashes = prefix_hashes(chat(*texts))
    assert prefix_hashes(chat(*texts, *more))[: len(hashes)] == hashes


def test_items_of_a_response_are_cut_as_messages_are_with_the_instructions_in_front() -> None:
    def asks(*texts: str) -> dict[str, Any]:
        return {"instructions": LONG, "input": [{"role": "user", "content": text} for text in texts]}

    assert common(asks("a", "b"), asks("a", "c")) == 2
    assert common(asks("a"), asks("a", "b", "c")) == 2
    assert common(asks("a"), {"instructions": LONG, "input": "a"}) == 1
    assert common({"input": asks(LONG, "a")["input"]}, {"input": asks(LONG, "b")["input"]}) == 1


def test_texts_to_embed_are_no_conversation() -> None:
    assert prefix_hashes({"input": LONG * 4}) == prefix_hashes({"input": [LONG, LONG]}) == ()


def test_a_request_that_goes_on_from_a_response_knows_all_before_it_and_its_own_name_last() -> None:
    first = prefix_hashes(chat(LONG, "a"))
    second = continued(first, "resp_1", {})
    assert second[:-1] == first
    assert continued(first, "resp_2", {}) != second
    named = {"prompt_cache_key": "mine"}
    assert continued(second, "resp_2", named)[-1:] == prefix_hashes(named)
    for number in range(2 * MAX_PREFIXES):
        second = continued(second, f"resp_{number}", {})
    assert len(second) == MAX_PREFIXES
