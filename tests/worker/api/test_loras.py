"""The field `lora` and the router's header: which adapters a request gets, and what is refused."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, Script
from tests.support.worker_client import WorkerReply, serve
from worker.api.loras import AskedLora, choose_adapters, read_lora_header, read_loras, refuse_adapters
from worker.chat.template import ChatTemplate
from worker.contract import Header, LoraFile
from worker.engine.request import AdapterSet, FinishReason
from worker.errors import RequestError, UnsupportedParameter

LORAS = (LoraFile("formal", "/f.gguf"), LoraFile("sql", "/s.gguf", 0.5), LoraFile("0", "/0.gguf", 0.0))
ALIAS = (AskedLora("sql", 0.25),)


def chosen(value: Any, of_alias: tuple[AskedLora, ...] = ()) -> AdapterSet:
    return choose_adapters(LORAS, None if value is None else read_loras(value), of_alias)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ([], ()),
        ([{"id": 0, "scale": 0.5}], ((0, 0.5),)),
        ([{"id": 0}], ((0, 1.0),)),
        ([{"id": 1.0}], ((1, 0.5),)),
        ([{"name": "sql"}], ((1, 0.5),)),
        ([{"name": "sql", "scale": None}], ((1, 0.5),)),
        ([{"id": 1, "scale": 2}, {"name": "formal", "scale": -1}], ((0, -1.0), (1, 2.0))),
        ([{"id": 0, "scale": 0}], ()),
        ([{"id": 0, "scale": 0.0}, {"id": 1}], ((1, 0.5),)),
        ([{"name": "0", "scale": 1}], ((2, 1.0),)),
        ([{"name": "0"}], ()),
        ([{"id": 0, "name": None, "note": "x"}], ((0, 1.0),)),
    ],
)
def test_field_becomes_an_ordered_set_without_scales_of_zero(value: Any, expected: AdapterSet) -> None:
    assert chosen(value) == expected


def test_requests_field_replaces_the_aliass_adapters_and_an_empty_list_removes_them() -> None:
    assert chosen(None, ALIAS) == ((1, 0.25),)
    assert chosen([{"id": 0}], ALIAS) == ((0, 1.0),)
    assert chosen([], ALIAS) == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("formal", 'must be a list such as [{"id": 0, "scale": 1.0}], but it is "formal"'),
        ({"id": 0}, "but it is an object"),
        (0, "but it is 0"),
        ([0], 'has an entry at index 0 that is 0, but it must be an object such as {"id": 0, "scale": 1.0}'),
        ([{"id": 0}, {}], "at index 1 with neither of 'id' and 'name'"),
        ([{"id": 0, "name": "sql"}], "with both of 'id' and 'name'"),
        ([{"id": "0"}], "whose 'id' is \"0\", but it must be an integer"),
        ([{"id": True}], "whose 'id' is true"),
        ([{"id": 0.5}], "whose 'id' is 0.5"),
        ([{"name": 5}], "whose 'name' is 5, but it must be a string"),
        ([{"id": 0, "scale": "1"}], "whose 'scale' is \"1\", but it must be a number from -100 to 100"),
        ([{"id": 0, "scale": True}], "whose 'scale' is true"),
        ([{"id": 0, "scale": 101}], "whose 'scale' is 101"),
        ([{"id": 0, "scale": float("inf")}], "whose 'scale' is"),
        ([{"id": 0}] * 300, "has 300 entries, but at most 256"),
    ],
)
def test_wrong_form_is_told_with_what_it_must_be(value: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        read_loras(value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([{"id": 3}], "names the id 3, but this model's adapters are 0: formal, 1: sql, 2: 0."),
        ([{"id": -1}], "names the id -1"),
        ([{"name": "SQL"}], 'names the adapter "SQL"'),
        ([{"id": 1}, {"name": "sql"}], 'names the adapter "sql" twice'),
    ],
)
def test_unknown_adapter_is_answered_with_those_that_there_are(value: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        chosen(value)
    assert words in str(caught.value)
    assert (caught.value.status, caught.value.param) == (400, "lora")


def test_model_without_adapters_says_where_they_are_listed() -> None:
    with pytest.raises(RequestError, match=r"has no adapters; list them under `loras` in models\.yaml"):
        choose_adapters((), read_loras([{"id": 0}]), ())
    assert choose_adapters((), None, ()) == ()


@pytest.mark.parametrize("text", ["", "formal", "%5B1%5D", "{}", "%5B"])
def test_header_that_no_router_writes_is_blamed_on_the_pairing(text: str) -> None:
    with pytest.raises(RequestError, match="do not fit together"):
        read_lora_header(text)


def test_alias_with_adapters_is_refused_where_nothing_is_generated() -> None:
    refuse_adapters(())
    with pytest.raises(UnsupportedParameter, match="applied to generated text only"):
        refuse_adapters(ALIAS)


# --- over the socket --------------------------------------------------------------------------------------


def header(*asked: dict[str, Any]) -> dict[str, str]:
    return {Header.LORA: urllib.parse.quote(json.dumps(asked, ensure_ascii=False), safe="")}


async def ask(engine: FakeEngine, headers: dict[str, str], **fields: Any) -> WorkerReply:
    async with serve(engine, loras=LORAS) as worker:
        return await worker.post("/v1/completions", {"prompt": "hi", **fields}, **headers)


async def ask_chat(engine: FakeEngine, headers: dict[str, str], **fields: Any) -> WorkerReply:
    template = ChatTemplate("{{ messages[0].content }}", bos_text="", eos_text="</s>", control_texts=())
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    async with serve(engine, loras=LORAS, template=template) as worker:
        return await worker.post("/v1/chat/completions", body, **headers)


def scripted() -> FakeEngine:
    return FakeEngine(answers=[Script((b"Hello",), FinishReason.STOP)] * 8)


async def test_alias_and_field_reach_the_engine() -> None:
    of_alias = header({"name": "sql", "scale": 0.25})
    for on in (ask, ask_chat):
        engine = scripted()
        replies = [await on(engine, of_alias, n=2), await on(engine, of_alias, lora=[{"id": 0}]), await on(engine, {})]
        assert [len(reply.json["choices"]) for reply in replies] == [2, 1, 1]
        assert [request.adapters for request in engine.submitted] == [((1, 0.25),), ((1, 0.25),), ((0, 1.0),), ()]


async def test_wrong_field_is_refused_by_name() -> None:
    reply = await ask(scripted(), {}, lora="formal")
    assert (reply.error.status, reply.error.param) == (400, "lora")
    assert reply.error.message.startswith("'lora' must be a list")
