"""The playground in a real browser with a real model: asking, stopping, going on, and what is refused.

What answers look like that a small model does not give is tested in test_playground_answers.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.playground import (
    NO_SLOT_IS_BUSY,
    ask,
    ended,
    message,
    option,
    playground,
    problem_at,
    set_folded,
    timing,
)
from tests.browser.tabs import OpenTab
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser

REFUSED = r"status of (400|503)"
SEE_THOUGHTS = """() => {
    window.seen = null;
    new MutationObserver(() => {
        const open = document.querySelector('.thoughts[open] > summary');
        if (open) window.seen ??= open.textContent;
    }).observe(document.body, {subtree: true, childList: true, attributes: true});
}"""
THINKER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n{# thoughts end with </think> #}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """`smollm2`, `thinker` whose template begins a thought, `broken` that cannot be loaded."""
    folder = tmp_path_factory.mktemp("playground")
    (folder / "broken.gguf").write_bytes(b"NOPE" * 100)
    (folder / "thinker.jinja").write_text(THINKER)
    file = {
        "model": str(smollm2_path()),
        "device": "cpu",
        "threads": 2,
        "context": 2048,
        "slots": 2,
        "idle_unload_s": 0,
    }
    models = {
        "smollm2": file | {"aliases": ["gpt-4o-mini"]},
        "thinker": file | {"chat_template": "./thinker.jinja"},
        "broken": {"model": "./broken.gguf"},
    }
    with real_server(folder, models) as running:
        yield running


def test_a_chat_loads_its_model_streams_and_tells_its_times(server: RealServer, open_tab: OpenTab) -> None:
    """Runs first: the model is not loaded yet."""
    page = playground(open_tab(server.url))
    expect(page.locator(".picker .state")).to_have_text("unloaded")
    option(page, "Longest answer").fill("24")
    ask(page, "Say hello in five words.")
    expect(page.locator(".wait")).to_contain_text(re.compile(r"oading|Starting|Warming|Waiting"))
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    ended(page, "done")
    expect(page.locator(".picker .state")).to_have_text("ready")
    assert page.locator(".answer-text .prose").inner_text().strip()
    page.locator(".timing-fold summary").click()
    rows = timing(page)
    assert re.fullmatch(r"\d.* m?s", rows["to the first token"])
    assert re.fullmatch(r"\d+ tokens( \(\d+ % cached\))?", rows["prompt"])
    assert re.fullmatch(r"\d+ tokens", rows["generated"])
    assert re.fullmatch(r"[\d,.]+ tok/s", rows["generated at"])
    expect(page.locator(".timing div", has_text="for the load").locator("dd")).to_have_text(re.compile(r"\d.* m?s"))
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_the_limit_is_told_in_words_and_the_seed_makes_the_answer_again(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    option(page, "Longest answer").fill("8")
    option(page, "Seed").fill("7")
    option(page, "Temperature").fill("1,5")  # as some countries write it
    ask(page, "Tell me a long story.")
    ended(page, "done")
    expect(page.locator(".ending")).to_have_text(re.compile("Cut off at the limit"))
    first = page.locator(".answer-text .prose").inner_text()
    page.get_by_role("button", name="Ask again").click()
    ended(page, "done")
    expect(page.locator(".answer")).to_have_count(1)
    assert page.locator(".answer-text .prose").inner_text() == first
    assert timing(page)["seed"] == "7"


def test_stop_and_escape_free_the_slot_on_the_server(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    option(page, "Further fields of the request (JSON)").fill('{"ignore_eos": true}')
    for stop in (page.get_by_role("button", name="Stop").click, lambda: message(page).press("Escape")):
        ask(page, "Count to one thousand.")
        expect(page.locator(".wait:visible")).to_contain_text("Answering")
        assert busy_slots(server)
        stop()
        ended(page, "stopped")
        expect(page.locator(".ending").last).to_have_text("Stopped by you: the server has stopped generating.")
        page.wait_for_function(NO_SLOT_IS_BUSY)
    expect(page.get_by_role("button", name="Ask again")).to_be_visible()


def test_what_the_server_refuses_stands_at_its_field(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url)
    tab.allow(REFUSED)
    page = playground(tab)
    option(page, "Longest answer").fill("0")
    ask(page, "Hello")
    ended(page, "refused")
    expect(problem_at(option(page, "Longest answer"))).to_contain_text("must be an integer of at least 1")
    expect(page.locator(".ending")).to_contain_text("No answer: 'max_tokens' is 0")
    expect(option(page, "Longest answer")).to_be_focused()
    option(page, "Longest answer").fill("4")
    expect(problem_at(option(page, "Longest answer"))).to_be_hidden()
    page.get_by_role("button", name="Ask again").click()
    ended(page, "done")


def test_mistakes_in_folded_fields_unfold_them(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, width=390)
    tab.allow(REFUSED)
    page = playground(tab)
    for field, wrong, told in (
        ("Tools (JSON)", '[{"type": "x"}]', 'only "function" is'),
        ("Form of the answer (JSON schema)", '{"type": "thing"}', "thing"),
        ("Thinking", "on", "thinking"),
        ("Further fields of the request (JSON)", '{"top_logprobs": 99}', "top_logprobs"),
    ):
        set_folded(page, field, wrong)
        ask(page, "Hello")
        ended(page, "refused")
        expect(problem_at(option(page, field))).to_contain_text(told)
        expect(option(page, field)).to_be_in_viewport()
        set_folded(page, field, "")
        page.get_by_role("button", name="Clear").click()


def test_what_is_no_json_or_number_is_not_sent(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    for field, wrong, told in (
        ("Tools (JSON)", '[\n  {"type": }\n]', "line 2, column 12: a value is expected here"),
        ("Further fields of the request (JSON)", "[1]", "must be a JSON object"),
        ("Seed", "seven", "must be a number"),
    ):
        set_folded(page, field, wrong)
        ask(page, "Hello")
        expect(problem_at(option(page, field))).to_contain_text(told)
        expect(page.locator(".turn")).to_have_count(0)
        expect(message(page)).to_have_value("Hello")
        expect(option(page, field)).to_be_focused()
        set_folded(page, field, "")


def test_a_model_that_cannot_load_says_why(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url)
    tab.allow(REFUSED)
    page = playground(tab, "broken")
    ask(page, "Hello")
    ended(page, "refused")
    expect(page.locator(".ending")).to_contain_text("'broken' cannot be loaded")
    expect(page.locator(".picker-note")).to_contain_text("broken cannot be used now")


def test_thoughts_are_told_apart_from_the_answer(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url), "thinker")
    option(page, "Longest thought").fill("6")
    option(page, "Longest answer").fill("24")
    page.evaluate(SEE_THOUGHTS)
    ask(page, "Why is the sky blue?")
    ended(page, "done")
    expect(page.locator(".thoughts > summary")).to_have_text(re.compile(r"Thought for .*, \d+ tokens"))
    expect(page.locator(".thoughts")).not_to_have_attribute("open", "")
    assert page.evaluate("seen") == "Thinking …", "they are open while the model thinks"
    assert "of them thoughts" in timing(page)["generated"]


def test_raw_text_is_continued_and_goes_on(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    page.get_by_label("How it is asked").select_option("raw")
    expect(option(page, "System prompt")).to_be_disabled()
    option(page, "Longest answer").fill("6")
    ask(page, "Once upon a time")
    ended(page, "done")
    with page.expect_request("**/v1/completions") as asked:
        page.get_by_role("button", name="Continue").click()
    ended(page, "done")
    texts = [one.inner_text() for one in page.locator(".turn .turn-text:visible").all()]
    assert asked.value.post_data_json["prompt"].startswith("Once upon a time")
    assert len(asked.value.post_data_json["prompt"]) > len("Once upon a time")
    assert len(texts) == 3


def test_clear_stops_the_answer_and_can_be_taken_back(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url))
    expect(page.get_by_role("button", name="Clear")).to_be_disabled()
    option(page, "Further fields of the request (JSON)").fill('{"ignore_eos": true}')
    ask(page, "Count")
    expect(page.locator(".wait")).to_contain_text("Answering")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".turn")).to_have_count(0)
    page.wait_for_function(NO_SLOT_IS_BUSY)
    page.get_by_role("button", name="Bring it back").click()
    expect(page.locator(".turn")).to_have_count(2)
    ended(page, "stopped")


def test_scrolling_up_stops_the_following_until_it_is_wanted_again(server: RealServer, open_tab: OpenTab) -> None:
    page = playground(open_tab(server.url, width=390))
    option(page, "Further fields of the request (JSON)", unfold=True).fill('{"ignore_eos": true}')
    page.locator(".options > summary").click()
    page.set_viewport_size({"width": 390, "height": 420})
    ask(page, "Count to a hundred, one number a line, and write the word apple behind each number.")
    page.wait_for_function("() => document.scrollingElement.scrollTop > 150")
    page.mouse.move(200, 200)
    page.mouse.wheel(0, -400)
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    top = page.evaluate("document.scrollingElement.scrollTop")
    length = len(page.locator(".answer .answer-text").inner_text())
    page.wait_for_function(f"() => document.querySelector('.answer .answer-text').innerText.length > {length + 20}")
    assert page.evaluate("document.scrollingElement.scrollTop") == top
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    ended(page, "stopped")


def busy_slots(server: RealServer) -> bool:
    return any(slot["is_processing"] for slot in httpx.get(f"{server.url}/slots").json())
