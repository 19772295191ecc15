"""A template that comes in a request runs only where the operator allows it, and never out of bounds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.fakes.engine import IM_START, FakeEngine, Script
from tests.support.worker_client import WorkerReply, serve
from tests.worker.api.test_openai_chat import CHATML, prompt_text, template
from worker.chat import sandbox
from worker.chat.limits import Budget

HI = ("user", "hi")


def engine() -> FakeEngine:
    return FakeEngine(answers=[Script([b"ok"])])


async def chat(on: FakeEngine, source: Any, *, allowed: bool = True, **fields: Any) -> WorkerReply:
    async with serve(
        on, template=template(vocabulary=on.vocabulary), template_source=CHATML, allows_request_templates=allowed
    ) as worker:
        return await worker.chat(HI, chat_template=source, **fields)


async def test_template_of_a_request_replaces_the_models_own_for_this_request() -> None:
    on = engine()
    async with serve(on, template=template(), template_source=CHATML, allows_request_templates=True) as worker:
        for source in ("<|im_start|>{{ messages[0].content }}!", None):
            assert (await worker.chat(HI, chat_template=source)).end["outcome"] == "ok"
    first, second = (on.vocabulary.text(request.prompt) for request in on.submitted)
    assert (first, second) == ("<|im_start|>hi!", "<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n")
    assert on.submitted[0].prompt[0] == IM_START


async def test_model_without_a_template_takes_the_requests() -> None:
    on = engine()
    async with serve(on, allows_request_templates=True) as worker:
        assert (await worker.chat(HI, chat_template="{{ messages[0].content }}")).end["outcome"] == "ok"
    assert prompt_text(on) == "hi"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
    ],
)
async def test_every_dialect_of_conversations_with_the_field_takes_the_requests_template(
    path: str, body: dict[str, Any]
) -> None:
    for allowed in (True, False):
        on = engine()
        async with serve(on, template=template(), template_source=CHATML, allows_request_templates=allowed) as worker:
            reply = await worker.post(path, body | {"chat_template": "{{ messages[0].content }}!"})
        if allowed:
            assert prompt_text(on) == "hi!"
        else:
            assert (reply.error.status, reply.error.param) == (400, "chat_template")


async def test_template_of_a_request_is_refused_with_the_key_that_allows_it() -> None:
    on = engine()
    error = (await chat(on, "{{ messages }}", allowed=False)).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "chat_template")
    assert "`allow_request_templates: true`" in error.message
    assert on.submitted == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{% if %}", "line 2"),
        ("{% include 'x' %}", "cannot use other templates"),
        ("x" * (64 * 1024 + 1), "65537 characters, but at most 65536"),
        ("", "it must be a string that is not empty"),
        (5, "it must be a string that is not empty"),
    ],
)
async def test_broken_template_is_a_400_that_says_where(source: Any, words: str) -> None:
    on = engine()
    error = (await chat(on, source)).error
    assert (error.status, error.param) == (400, "chat_template")
    assert words in error.message
    assert on.submitted == []


async def test_template_of_a_request_refuses_in_its_own_words() -> None:
    error = (await chat(engine(), "{{ raise_exception('not like this') }}")).error
    assert (error.status, error.message) == (400, "not like this")


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(messages) }}",
    ],
)
async def test_python_is_out_of_reach_of_requests(source: str) -> None:
    assert (await chat(engine(), source)).error.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ (['x' * 10 ** 6] * 10 ** 3) | join }}",
    ],
)
async def test_work_without_end_is_refused(source: str) -> None:
    assert (await chat(engine(), source)).error.status == 400


async def test_finding_out_what_a_template_wants_counts_as_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, each of the small conversations that it is tried with could take as long as a real one."""
    spent: list[Budget | None] = []
    render = sandbox.SandboxedTemplate.render

    def recording(self: Any, variables: Any, guard: Any, budget: Budget | None = None) -> str:
        spent.append(budget)
        return render(self, variables, guard, budget)

    monkeypatch.setattr(sandbox.SandboxedTemplate, "render", recording)
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    error = (await chat(engine(), source)).error
    assert error.code == "template_limit_exceeded"
    assert len(spent) > 1
    assert len({id(budget) for budget in spent}) == 1
    assert spent[0] is not None


async def test_reasoning_effort_is_looked_for_in_the_requests_own_template() -> None:
    on = engine()
    await chat(on, "{{ reasoning_effort }}", reasoning_effort="low")
    assert prompt_text(on) == "low"


async def test_rendering_takes_place_beside_the_event_loop() -> None:
    on = engine()
    threads: list[threading.Thread] = []
    own = template()

    class Watched:
        def render(self, *args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread())
            return own.render(*args, **kwargs)

    async with serve(on, template=Watched(), template_source=CHATML) as worker:
        await worker.chat(HI)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
