"""Rules of models.yaml hold for Ollama's clients too, whose sampling is in `options`."""

from __future__ import annotations

from typing import Any

import pytest

from router.catalog import RequestRules
from router.dialects import Dialect
from router.request_rules import apply_rules
from tests.support.http_side import http_side, make_catalog, make_spec


@pytest.mark.parametrize(
    ("rules", "body", "expected"),
    [
        ({"defaults": {"temperature": 0.5}}, {}, {"options": {"temperature": 0.5}}),
        ({"defaults": {"temperature": 0.5}}, {"options": None}, {"options": {"temperature": 0.5}}),
        ({"defaults": {"temperature": 0.5}}, {"options": {"temperature": 1}}, {"options": {"temperature": 1}}),
        ({"force": {"temperature": 0.5}}, {"options": {"temperature": 1}}, {"options": {"temperature": 0.5}}),
        ({"drop": ("temperature",)}, {"options": {"temperature": 1, "seed": 2}}, {"options": {"seed": 2}}),
        ({"force": {"max_tokens": 9}}, {"options": {"num_predict": 100}}, {"options": {"num_predict": 9}}),
        ({"defaults": {"n_predict": 9}}, {"options": {"num_predict": 100}}, {"options": {"num_predict": 100}}),
        ({"drop": ("max_tokens",)}, {"options": {"num_predict": 100}}, {"options": {}}),
        ({"drop": ("format",)}, {"format": "json"}, {}),
        ({"drop": ("tools",)}, {"tools": [{}]}, {}),
        ({"defaults": {"tool_choice": "required"}}, {}, {"tool_choice": "required"}),
        ({"force": {"parallel_tool_calls": False}}, {}, {"parallel_tool_calls": False}),
        ({"drop": ("temperature", "grammar")}, {"temperature": 1, "grammar": "x"}, {}),
        ({"drop": ("max_tokens",)}, {"max_tokens": 5, "options": {"max_tokens": 5}}, {"options": {}}),
        ({"drop": ("reasoning_effort",)}, {"think": True}, {}),
        ({"defaults": {"reasoning_effort": "low"}}, {}, {"think": "low"}),
        ({"force": {"think": False}}, {"think": True}, {"think": False}),
        ({"force": {"temperature": 0.5}}, {"options": 5}, {"options": 5}),
        ({"defaults": {"chat_template_kwargs": {"a": 1}}}, {}, {"chat_template_kwargs": {"a": 1}}),
    ],
)
def test_a_rule_holds_where_ollama_has_what_it_is_about(
    rules: dict[str, Any], body: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = {"model": "m", **body}
    assert apply_rules(RequestRules(**rules), before, Dialect.OLLAMA) == {"model": "m", **expected}
    assert before == {"model": "m", **body}, "the client's own body stays as it was"


async def test_a_models_rules_reach_the_worker() -> None:
    rules = RequestRules(defaults={"temperature": 0.5}, force={"max_tokens": 9})
    async with http_side(make_catalog(make_spec("smol", request=rules))) as side:
        await side.client.post("/api/generate", json={"model": "smol", "prompt": "x", "stream": False})
        assert side.worker.received[0].body["options"] == {"temperature": 0.5, "num_predict": 9}
