"""A worker that answers Ollama's routes over a fake engine, for tests of that dialect."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.engine import FakeEngine, FakeVocabulary, Script
from tests.support.worker_client import WorkerReply, serve
from worker.api.speech import find_markers, speech_of
from worker.chat.template import ChatTemplate
from worker.engine.request import FinishReason

CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def engine(*steps: Any, finish: FinishReason = FinishReason.STOP, **options: Any) -> FakeEngine:
    """Return an engine that answers "Hello you", or what `steps` say."""
    return FakeEngine(answers=[Script(steps or (b"Hello", b" you"), finish)], **options)


def template(source: str, vocabulary: FakeVocabulary) -> ChatTemplate:
    """Return the compiled template."""
    return ChatTemplate(
        source,
        bos_text=vocabulary.bos_text,
        eos_text=vocabulary.eos_text,
        control_texts=vocabulary.control_texts,
    )


async def ask(on: FakeEngine, path: str, source: str | None = CHATML, **fields: Any) -> WorkerReply:
    """Return the reply to a body of these fields; `source` None = the model has no chat template."""
    compiled = None if source is None else template(source, on.vocabulary)
    speech = speech_of(source or "", find_markers(on.vocabulary.marker))
    async with serve(on, template=compiled, template_source=source or "", speech=speech) as worker:
        return await worker.post(path, fields)


def lines(reply: WorkerReply) -> list[Any]:
    """Return the JSON of each line of a stream, whose last line has its end too."""
    assert reply.shown_type == "application/x-ndjson"
    *told, rest = reply.body.split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in told]


def prompt_text(on: FakeEngine) -> str:
    """Return the text of the only prompt."""
    return on.vocabulary.text(on.submitted[0].prompt)
