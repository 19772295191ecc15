"""The playground of a browser tab: short ways to ask something there and to read what came of it.

Must not know servers, nor hold tests.
"""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.tabs import WITHIN_MS, Tab

CHAT = "**/v1/chat/completions"
NO_SLOT_IS_BUSY = "async () => (await (await fetch('/slots')).json()).every((slot) => !slot.is_processing)"

expect.set_options(timeout=WITHIN_MS)


def playground(tab: Tab, model: str = "smollm2") -> Page:
    page = tab.open("playground").page
    tab.wait_live()
    page.locator(f'#playground-model option[value="{model}"]').first.wait_for(state="attached")
    page.get_by_label("Model", exact=True).select_option(model)
    if page.locator(".options").get_attribute("open") is None:
        page.locator(".options > summary").click()
    return page


def message(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message", exact=True)


def ask(page: Page, text: str) -> None:
    message(page).fill(text)
    message(page).press("Enter")


def ended(page: Page, status: str) -> None:
    page.locator(f'.answer:last-child[data-status="{status}"]').wait_for()


def option(page: Page, label: str, *, unfold: bool = True) -> Locator:
    found = page.locator(".options").get_by_label(label, exact=True)
    fold = page.locator(".options .fold")
    if unfold and fold.locator(f'label:text-is("{label}")').count() and fold.get_attribute("open") is None:
        fold.locator("summary").click()
    return found


def set_folded(page: Page, label: str, value: str) -> None:
    field = option(page, label)
    if field.evaluate("(node) => node.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
    fold = page.locator(".options .fold")
    if fold.get_attribute("open") is not None:
        fold.locator("summary").click()


def problem_at(field: Locator) -> Locator:
    return field.locator("xpath=..").locator(".field-problem")


def timing(page: Page) -> dict[str, str]:
    found = page.evaluate(
        "() => [...[...document.querySelectorAll('.answer')].at(-1).querySelectorAll('.timing > div')]"
        ".map((row) => [row.querySelector('dt').textContent, row.querySelector('dd').textContent])"
    )
    return dict(found)


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def end(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def events(*told: dict[str, Any], is_done: bool = True) -> str:
    return "".join(f"data: {json.dumps(one)}\n\n" for one in told) + ("data: [DONE]\n\n" if is_done else "")


def answers(page: Page, *bodies: str) -> list[dict[str, Any]]:
    """The next chat requests are answered with these; return the list that their bodies are put into."""
    asked: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        asked.append(dict(route.request.post_data_json or {}))
        route.fulfill(status=200, headers={"Content-Type": "text/event-stream"}, body=bodies[len(asked) - 1])

    page.route(CHAT, answer)
    return asked
