"""What the playground makes of answers that a small model does not give: calls of tools, broken ones, Markdown.

The replies are put in place of the server's in the browser; what a real model answers is tested in test_playground.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.playground import CHAT, answers, ask, delta, end, ended, events, message, option, playground, timing
from tests.browser.tabs import WIDTHS, OpenTab
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Its model is never loaded."""
    models = {"smollm2": {"model": str(smollm2_path()), "aliases": ["gpt-4o-mini"]}}
    with real_server(tmp_path_factory.mktemp("answers"), models) as running:
        yield running


def test_calls_are_shown_and_answered(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": '"Oslo"}'}}
    bodies = answers(
        page,
        events(
            delta(reasoning_content="I need it."), delta(tool_calls=[call]), delta(tool_calls=[rest]), end("tool_calls")
        ),
        events(delta(content="It is cold."), end("stop")),
    )
    ask(page, "How is the weather?")
    expect(page.locator(".call")).to_contain_text("Call of weather")
    expect(page.locator(".call pre")).to_have_text('{\n  "city": "Oslo"\n}')
    expect(page.locator(".ending")).to_have_text("Asks for one call of a tool.")
    expect(page.locator(".thoughts > summary")).to_contain_text("Thought")
    page.get_by_label("Its result").fill('{"celsius": -3}')
    page.get_by_role("button", name="Send the results").click()
    expect(page.locator(".answer").last.locator(".answer-text .prose")).to_have_text("It is cold.")
    sent = bodies[1]["messages"]
    assert sent[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    ]
    assert sent[1]["reasoning_content"] == "I need it."
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": '{"celsius": -3}'}
    expect(page.get_by_role("button", name="Send the results")).to_be_hidden()


def test_results_that_cannot_be_sent_can_be_sent_again(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answers(page, events(delta(tool_calls=[call]), end("tool_calls")))
    ask(page, "Call it")
    option(page, "Seed").fill("x")
    page.get_by_role("button", name="Send the results").click()
    expect(page.locator(".composer .problem")).to_contain_text("Not sent")
    expect(page.get_by_role("button", name="Send the results")).to_be_visible()
    expect(page.locator(".turn")).to_have_count(2)


def test_an_answer_that_broke_off_is_marked_so(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    error = {"error": {"message": "the worker ended", "code": "worker_died"}}
    beginning = delta(content="It was a dark and")
    cases = (
        (events(beginning, error, is_done=False), "broken", "The answer broke off: the worker ended. What stands here"),
        (events(beginning, is_done=False), "broken", "The answer broke off: The stream ended before the answer did."),
        (events(is_done=False), "refused", "No answer: The stream ended before the answer did."),
    )
    answers(page, *(body for body, _, _ in cases))
    for _, status, told in cases:
        ask(page, "Tell a story")
        ended(page, status)
        expect(page.locator(".ending").last).to_contain_text(told)
        assert page.locator(".timing-fold").last.is_hidden() == (status == "refused")


def test_what_is_not_known_is_shown_as_unknown(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    answers(page, events(delta(content="Hi"), end("stop")))
    ask(page, "Hello")
    ended(page, "done")
    rows = timing(page)
    assert {rows[name] for name in ("in the queue", "for the load", "prompt", "generated", "generated at", "seed")} == {
        "–"
    }


def test_markdown_becomes_elements_and_html_stays_text(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    text = (
        "# Head\nA **bold** <img src=x onerror=alert(1)> word, snake_case_name, 2*3*4.\n\n- one\n  1. inner\n- two\n\n"
        "| a | b |\n|---|--:|\n| 1 | `x` |\n\n[good](https://example.com) [bad](javascript:alert(1))\n\n> said\n\n"
        "```python\nprint('<b>')\n```\n"
    )
    answers(page, events(*(delta(content=piece) for piece in text), end("stop")))
    ask(page, "Show me")
    ended(page, "done")
    prose = page.locator(".answer .answer-text .prose")
    expect(prose.locator("h3")).to_have_text("Head")
    expect(prose.locator("strong")).to_have_text("bold")
    expect(prose.locator("p").first).to_contain_text("<img src=x onerror=alert(1)> word, snake_case_name, 2*3*4.")
    assert prose.locator("img, em, script").count() == 0
    expect(prose.locator("ul > li")).to_have_count(2)
    expect(prose.locator("ul ol > li")).to_have_text("inner")
    expect(prose.locator("td code")).to_have_text("x")
    expect(prose.locator("a")).to_have_count(1)
    expect(prose.locator("a")).to_have_attribute("rel", "noopener noreferrer")
    expect(prose.locator("blockquote")).to_have_text("said")
    expect(prose.locator("pre code")).to_have_text("print('<b>')")
    expect(prose.locator(".code-language")).to_have_text("python")
    option(page, "Show answers as plain text").check()
    expect(page.locator(".answer .turn-text")).to_have_text(text, use_inner_text=False)


def test_an_answer_can_be_stopped_before_it_begins_and_asked_for_again(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    page.route(CHAT, lambda route: None)  # it waits for ever
    ask(page, "Hello")
    expect(page.locator(".wait")).to_contain_text("Waiting for the model: not loaded yet")
    page.get_by_role("button", name="Stop").click()
    ended(page, "stopped")
    expect(page.locator(".ending")).to_contain_text("Stopped by you before the answer began.")
    option(page, "Seed").fill("x")
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".composer .problem")).to_contain_text("Not sent")
    expect(page.locator(".ending")).to_contain_text("Stopped by you before the answer began.")
    option(page, "Seed").fill("")
    page.unroute(CHAT)
    answers(page, events(delta(content="Hi"), end("stop")))
    page.get_by_role("button", name="Ask again").click()
    ended(page, "done")


def test_an_answer_that_was_cut_off_goes_on(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    bodies = answers(
        page,
        events(delta(content="It was a"), end("length")),
        events(delta(content=" dark night."), {"error": {"message": "the worker ended"}}, is_done=False),
        events(delta(content=" The end."), end("stop")),
    )
    ask(page, "Tell a story")
    prose = page.locator(".answer-text .prose")
    expect(page.locator(".ending")).to_contain_text("Cut off at the limit")
    page.get_by_role("button", name="Go on").click()
    expect(prose).to_have_text("It was a dark night.")
    expect(page.locator(".ending")).to_contain_text("broke off")
    option(page, "Seed").fill("x")
    page.get_by_role("button", name="Go on").click()  # refused by the page: nothing changes
    expect(page.locator(".composer .problem")).to_contain_text("Not sent")
    option(page, "Seed").fill("")
    page.get_by_role("button", name="Go on").click()
    expect(prose).to_have_text("It was a dark night. The end.")
    expect(page.get_by_role("button", name="Go on")).to_be_hidden()
    assert bodies[2]["messages"][-1] == {"role": "assistant", "content": "It was a dark night."}


def test_no_text_takes_long_to_show(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("playground").page
    blank, num = " " * 8000, 8000
    texts = ["**a " * num, "_a " * num, "[" * num, "`" * num, "`a" * num, "# a" + blank + "b", "``` " + blank + "`"]
    texts += ["~~a " * num, "a|b\n-" + blank + "x", "> " * num, "- " * num, "\\" * num, "https://" * num, "![](" * num]
    texts += [
        "- - " * num + "x",
        "|" * num + "\n" + "-|" * num,
        "1. a\n" * num,
        "\n".join("  " * at + "- a" for at in range(400)),
    ]
    slowest = page.evaluate(
        """async (texts) => {
            const { markdownView } = await import('/ui/lib/markdown.js');
            return texts.map((text) => {
                const began = performance.now();
                markdownView().update(text);
                return [performance.now() - began, text.slice(0, 10)];
            }).sort((one, other) => other[0] - one[0])[0];
        }""",
        texts,
    )
    assert slowest[0] < 2000, slowest


# --- the conversation ---------------------------------------------------------------------------------------


def test_an_edited_message_is_asked_anew_and_what_stood_below_is_gone(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    option(page, "System prompt").fill("Be short.")
    bodies = answers(page, *(events(delta(content=text), end("stop")) for text in ("one", "two", "three")))
    ask(page, "First")
    expect(page.locator(".answer")).to_have_count(1)
    ask(page, "Second")
    expect(page.locator(".answer").last.locator(".answer-text .prose")).to_have_text("two")
    page.get_by_role("button", name="Edit").first.click()
    area = page.get_by_label("Edit the message")
    area.fill("")
    page.get_by_role("button", name="Send again").click()
    expect(area).to_be_focused()  # nothing is sent
    area.fill("Changed")
    area.press("Enter")
    expect(page.locator(".answer-text .prose")).to_have_text("three")
    expect(page.locator(".turn.user .turn-text")).to_have_text("Changed")
    assert [one["content"] for one in bodies[1]["messages"]] == ["Be short.", "First", "one", "Second"]
    assert [one["content"] for one in bodies[2]["messages"]] == ["Be short.", "Changed"]


def test_an_edit_can_be_left(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    answers(page, events(delta(content="one"), end("stop")))
    ask(page, "First")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("Other")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".turn.user .turn-text")).to_have_text("First")
    expect(page.get_by_role("button", name="Edit")).to_be_focused()


def test_the_conversation_survives_a_reload_of_the_page(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    option(page, "System prompt").fill("Be kind.")
    answers(page, events(delta(content="Hello *you*"), end("stop")))
    ask(page, "Hi")
    ended(page, "done")
    page.reload()
    expect(page.locator(".turn.user .turn-text")).to_have_text("Hi")
    expect(page.locator(".answer-text .prose em")).to_have_text("you")
    expect(option(page, "System prompt")).to_have_value("Be kind.")
    expect(page.locator(".options > summary")).to_have_text("Options (1 set)")
    assert page.evaluate("localStorage.length") == 0


def test_copies_reach_the_clipboard_or_say_that_they_do_not(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, permissions=["clipboard-read", "clipboard-write"])
    page = playground(tab)
    answers(page, events(delta(content="```\ncode\n```"), end("stop")))
    ask(page, "Hi")
    ended(page, "done")
    read = "navigator.clipboard.readText()"
    page.locator(".code-box").get_by_role("button", name="Copy").click()
    page.wait_for_function(f"async () => (await {read}) === 'code'")
    page.locator(".turn.user").get_by_role("button", name="Copy").click()
    page.wait_for_function(f"async () => (await {read}) === 'Hi'")
    page.locator(".answer .turn-head").get_by_role("button", name="Copy").click()
    page.wait_for_function(f"async () => (await {read}) === '```\\ncode\\n```'")
    page.get_by_role("button", name="Copy all").click()
    page.wait_for_function(f"async () => (await {read}).startsWith('## User\\n\\nHi\\n\\n## smollm2')")
    page.evaluate(
        "navigator.clipboard.writeText = () => Promise.reject(new Error('no')); document.execCommand = () => false"
    )
    button = page.locator(".turn.user").get_by_role("button", name="Copy")
    button.click()
    expect(page.locator(".turn.user .turn-head button").last).to_have_text("Not allowed")


@pytest.mark.parametrize("width", WIDTHS)
def test_enter_sends_shift_enter_and_composing_do_not(server: RealServer, open_tab: OpenTab, width: int) -> None:
    tab = open_tab(server.url, width=width, dark=width == 390)
    page = playground(tab, "gpt-4o-mini")
    bodies = answers(page, events(delta(content="yes | no"), end("stop")))
    box = message(page)
    page.get_by_role("button", name="Send").click()
    expect(box).to_be_focused()  # nothing to send
    box.fill("one")
    box.press("Shift+Enter")
    box.type("two")
    box.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    expect(page.locator(".turn")).to_have_count(0)
    box.press("Enter")
    ended(page, "done")
    assert bodies[0]["model"] == "gpt-4o-mini"
    assert bodies[0]["messages"] == [{"role": "user", "content": "one\ntwo"}]
    expect(page.locator(".answer-text")).to_have_attribute("aria-live", "polite")
    assert tab.overflow() == []
