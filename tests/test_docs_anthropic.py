"""What docs/anthropic.md claims is what the code does: fields, refusals, blocks."""

from __future__ import annotations

import json

from tests.test_docs import name_in, own_of, quoted, rows, section, text_of
from worker.api.anthropic_fields import MessageFields
from worker.api.anthropic_turns import make_turns
from worker.api.refused_anthropic import MESSAGES
from worker.api.sampling_fields import SamplingFields
from worker.contract import BILLING_HEADER

DOCUMENT = text_of("docs/anthropic.md")

VALUES = (
    *(
        False,
        True,
        -1,
        0,
        1,
        2,
        "",
        "x",
        "auto",
        "none",
        "deepseek",
        "standard",
        "standard_only",
        "default",
        "fast",
        [],
        {},
    ),
    {"edits": []},
    {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]},
    {"previous_message_id": None},
    {"previous_message_id": "msg_1"},
)
"""What clients send in fields that may be harmless."""


def test_every_field_that_is_honoured_is_listed_with_what_it_must_be() -> None:
    listed = {name_in(row[0]): row[1] for row in rows(section(DOCUMENT, "## Fields"))}
    fields = MessageFields.model_fields
    assert listed.keys() == fields.keys() - SamplingFields.model_fields.keys()
    assert listed == {name: fields[name].description for name in listed}


def test_every_field_that_is_refused_is_listed_with_the_values_that_pass() -> None:
    own = own_of(MESSAGES)
    listed = {name_in(row[0]): quoted(row[1]) for row in rows(section(DOCUMENT, "## Refused unless harmless"))}
    assert listed.keys() == own.keys()
    for name, told in listed.items():
        assert sorted(json.dumps(value) for value in VALUES if own[name].passes(value)) == sorted(told), name


def test_every_block_is_listed_and_can_stand_where_it_is_said() -> None:
    sample = {
        "text": {"text": "x"},
        "thinking": {"thinking": "x"},
        "redacted_thinking": {"data": "x"},
        "tool_use": {"id": "t", "name": "n", "input": {}},
        "tool_result": {"tool_use_id": "t", "content": "x"},
    }
    listed = {name_in(row[0]): row[1] for row in rows(section(DOCUMENT, "## Blocks"))}
    assert listed.keys() == sample.keys()
    for type_, place in listed.items():
        for role in ("user", "assistant", "system") if place == "everywhere" else (place,):
            assert make_turns([{"role": role, "content": [{"type": type_} | sample[type_]]}]), type_


def test_the_line_that_is_dropped_is_named() -> None:
    assert f"`{BILLING_HEADER} …`" in section(DOCUMENT, "## The billing line")
