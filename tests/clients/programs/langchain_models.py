"""LangChain's models for OpenAI's API."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from checking import CODER, KEY, MINI, NUM_DIMENSIONS, QUESTION, SMOL, TINY, URL, main, refusal
from counting import Weather
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

SERVER: dict[str, Any] = {"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0}


def chat(**fields: Any) -> ChatOpenAI:
    """Return the model, greedy and short."""
    return ChatOpenAI(**({"model": TINY, "max_tokens": 8, "temperature": 0} | SERVER | fields))


def check_a_question_is_answered_with_usage_and_finish_reason() -> None:
    reply = chat(model=SMOL).invoke(QUESTION)
    assert isinstance(reply, AIMessage)
    assert reply.text
    assert reply.response_metadata["finish_reason"] == "length"
    assert reply.response_metadata["model_name"] == SMOL
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] == 8
    assert reply.usage_metadata["total_tokens"] == reply.usage_metadata["input_tokens"] + 8


def check_a_stream_adds_up_to_the_same() -> None:
    model = chat(stream_usage=True)
    whole, *others = model.stream(QUESTION)
    for chunk in others:
        whole += chunk
    assert whole.text == chat().invoke(QUESTION).text
    assert whole.response_metadata["finish_reason"] == "length"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 8


def check_async_and_batches() -> None:
    questions = ["Say one word.", "Say two words.", "Say three words."]
    alone = [chat().invoke(question).text for question in questions]
    assert [reply.text for reply in chat().batch(questions)] == alone

    async def streamed(question: str) -> str:
        return "".join([chunk.text async for chunk in chat().astream(question)])

    async def all_streamed() -> list[str]:
        return await asyncio.gather(*map(streamed, questions))

    assert asyncio.run(all_streamed()) == alone


def check_a_conversation_goes_back_and_forth() -> None:
    conversation: list[Any] = [SystemMessage("Answer shortly."), HumanMessage("Hi")]
    for question in ("And?", "More?"):
        reply = chat().invoke(conversation)
        conversation += [reply, HumanMessage(question)]
    assert chat().invoke(conversation).text


def check_stop_seed_and_log_probabilities_are_passed_on() -> None:
    whole = chat(max_tokens=24).invoke(QUESTION).text
    stop = whole[len(whole) // 2 :][:3]
    assert chat(max_tokens=24, stop=[stop]).invoke(QUESTION).text == whole[: whole.index(stop)]
    told = chat(logprobs=True, top_logprobs=2, seed=1).invoke(QUESTION).response_metadata["logprobs"]
    assert len(told["content"]) == 8


def check_the_same_through_responses() -> None:
    model = chat(use_responses_api=True, max_tokens=16)
    reply = model.invoke(QUESTION)
    assert reply.text
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] == 16
    whole, *others = model.stream(QUESTION)
    for chunk in others:
        whole += chunk
    assert whole.text == reply.text
    again = model.invoke("And more?", previous_response_id=reply.response_metadata["id"])
    assert again.text


def check_raw_completions() -> None:
    model = OpenAI(model=TINY, max_tokens=8, temperature=0, **SERVER)
    whole = model.invoke("Once upon a time")
    assert whole
    assert "".join(model.stream("Once upon a time")) == whole


def check_embeddings() -> None:
    # Otherwise it sends ids of tokens of OpenAI's own vocabulary, which no other model has.
    model = OpenAIEmbeddings(model=MINI, check_embedding_ctx_length=False, **SERVER)
    assert len(model.embed_query("a cow")) == NUM_DIMENSIONS
    assert len(model.embed_documents(["a cow", "a bull"])) == 2


FOR_WEATHER = "What is the weather in Oslo for the next 3 days, in degrees C?"


def check_structured_output_is_made_by_every_method_that_says_what_it_wants() -> None:
    for method in ("json_schema", "function_calling"):
        asking = chat(model=CODER, max_tokens=64).with_structured_output(Weather, method=method)
        assert isinstance(asking.invoke(FOR_WEATHER), Weather), method


def check_its_json_mode_gets_an_object() -> None:
    asking = chat(model=CODER, max_tokens=64).with_structured_output(None, method="json_mode")
    told = asking.invoke('Answer with this JSON object: {"city": "Oslo"}')
    assert isinstance(told, dict)


def check_tools_are_called_streamed_and_not_and_told_what_came_of_it() -> None:
    model = chat(model=CODER, max_tokens=64)
    calling = model.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False)
    reply = calling.invoke(FOR_WEATHER)
    (call,) = reply.tool_calls
    assert call["name"] == "Weather"
    Weather.model_validate(call["args"])
    assert reply.invalid_tool_calls == []
    whole, *others = calling.stream(FOR_WEATHER)
    for chunk in others:
        whole += chunk
    (streamed,) = whole.tool_calls
    Weather.model_validate(streamed["args"])
    result = ToolMessage("Oslo: 3 C", tool_call_id=call["id"])
    assert model.bind_tools([Weather], tool_choice="none").invoke([HumanMessage(FOR_WEATHER), reply, result]).text


def check_refusals_are_openais_exceptions() -> None:
    for kind, fields in (
        (openai.NotFoundError, {"model": "smoll"}),
        (openai.AuthenticationError, {"api_key": "wrong"}),
        (openai.BadRequestError, {"top_p": 7}),
    ):
        with refusal(kind):
            chat(**fields).invoke(QUESTION)


if __name__ == "__main__":
    main(globals())
