"""Answers that end at a line that is indented too little."""

from __future__ import annotations

import pytest

from tests.fakes.engine import FakeEngine, Script
from tests.support.worker_client import serve
from worker.api.indent_limit import IndentLimit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n  b\n c\n", "a\n  b\n "),
        ("a\n  b\n   c", "a\n  b\n   c"),
        ("a\n\tb\n\t\tc", "a\n\t"),
        ("a\n  b\n\n  c", "a\n  b\n"),
        ("a\n  b\n  ", "a\n  b\n  "),
        ("a", "a"),
        ("\nb", "\n"),
    ],
)
def test_answer_ends_before_the_first_letter_of_such_a_line(text: str, shown: str) -> None:
    whole, single = IndentLimit(2), IndentLimit(2)
    assert whole.take(text) == shown
    assert "".join(single.take(letter) for letter in text) == shown
    assert whole.is_over == single.is_over == (shown != text)


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_is_told_and_nothing_comes_after_it(stream: bool) -> None:
    engine = FakeEngine(answers=[Script([b"a\n    b", b"\n", b"xyz", b"more"], finish=None)])
    async with serve(engine) as worker:
        reply = await worker.post("/completion", {"prompt": "x", "n_indent": 4, "stop": ["yq"], "stream": stream})
    if stream:
        text = reply.body.decode()
        assert '"content":"a\\n    b"' in text
        assert "x" not in text.partition('"stop":true')[0].replace('"index"', "")
        assert '"stop_type":"limit"' in text
    else:
        assert (reply.json["content"], reply.json["stop_type"]) == ("a\n    b\n", "limit")
    assert engine.finished == [(1, 11)]
    assert reply.end["usage"]["completion_tokens"] == 11
