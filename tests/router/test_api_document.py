"""`GET /openapi.json` and `GET /docs`: served to everybody, and the page is complete and needs nothing else."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from typing import Any

from router.api_page import render_page
from tests.support.http_side import http_side

KEYS = {"api_keys": ("secret",)}


async def test_document_is_served_without_a_key() -> None:
    async with http_side(keys=KEYS) as side:
        reply = await side.client.get("/openapi.json")
        assert (reply.status, reply.content_type) == (200, "application/json")
        described = await reply.json()
    assert described["openapi"] == "3.1.0"
    assert described["paths"]["/v1/chat/completions"]["post"]["requestBody"]["required"] is True


async def test_page_is_served_without_a_key_and_may_load_nothing() -> None:
    async with http_side(keys=KEYS) as side:
        reply = await side.client.get("/docs")
        assert (reply.status, reply.content_type, reply.charset) == (200, "text/html", "utf-8")
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        page = await reply.text()
    assert not re.search(r"<script|<link|<img|@import|url\(|https?://", page)


async def test_page_leads_to_every_route_on_wide_and_on_narrow_screens() -> None:
    async with http_side() as side:
        described = await (await side.client.get("/openapi.json")).json()
        page = await (await side.client.get("/docs")).text()
    navs = re.findall(r"<nav.*?</nav>", page, re.DOTALL)
    assert len(navs) == 2
    main = [one for found in described["paths"].values() for one in found.values() if "x-form-of" not in one]
    for nav in navs:
        targets = set(re.findall(r'href="#([^"]+)"', nav))
        assert all(f'id="{target}"' in page for target in targets)
        assert len(targets) == len(main) + len({tag for one in main for tag in one["tags"]})
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page


async def test_page_shows_what_is_refused_and_what_replies_hold() -> None:
    async with http_side() as side:
        page = await (await side.client.get("/docs")).text()
    chat = page.partition('id="post_v1_chat_completions"')[2].partition("</section>")[0]
    assert "<code>web_search_options</code>" in chat.partition("Fields that it refuses")[2]
    assert "<code>choices[].message.content</code></td><td>text</td><td>The answer.</td>" in chat
    ollama = page.partition('id="post_api_chat"')[2].partition("</section>")[0]
    assert "<code>options.temperature</code>" in ollama


async def test_start_page_leads_to_both() -> None:
    async with http_side() as side:
        lines = (await (await side.client.get("/")).text()).splitlines()
    assert {"GET   /openapi.json", "GET   /docs"} <= set(lines)


async def test_page_shows_every_route_field_and_status_of_the_document() -> None:
    async with http_side() as side:
        described = await (await side.client.get("/openapi.json")).json()
        page = await (await side.client.get("/docs")).text()
    check_nesting(page)
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert f"<b>{method.upper()}</b> <code>{html.escape(path)}</code>" in page
            part = page.partition(f'id="{re.sub("[^a-z0-9_]+", "-", operation["operationId"].lower())}"')[2]
            part = part.partition("</section>")[0]
            assert all(f"<td>{status}</td>" in part for status in operation["responses"]), path
            for media in operation.get("requestBody", {}).get("content", {}).values():
                schema = media["schema"]
                if "$ref" in schema:
                    schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
                assert all(f"<code>{field}</code>" in part for field in schema.get("properties", ())), path


def check_nesting(page: str) -> None:
    """Every element that is opened is closed, in order."""
    open_: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag != "meta":
                open_.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_.pop() == tag

    Reader().feed(page)
    assert open_ == []


def test_text_of_the_document_cannot_become_markup() -> None:
    evil = '<script>alert("x")</script>'
    field = {"type": "string", "description": f"`{evil}` {evil}", "default": evil, "enum": [evil]}
    operation = {
        "operationId": evil,
        "summary": evil,
        "description": evil,
        "tags": [evil],
        "parameters": [{"name": evil, "in": "query", "description": evil, "schema": field}],
        "requestBody": {"content": {evil: {"schema": {"type": "object", "properties": {evil: field}}}}},
        "responses": {evil: {"description": evil, "content": {evil: {}}}},
    }
    document = {
        "info": {"title": evil, "version": evil, "description": evil},
        "paths": {f"/{evil}": {"post": operation}},
    }
    page = render_page(json.loads(json.dumps(document)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    check_nesting(page)


def test_types_are_told_in_words() -> None:
    schemas = {"Part": {"type": "object", "properties": {"text": {"type": "string"}}}}
    part = {"$ref": "#/components/schemas/Part"}
    wanted = {
        "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "1 or 2": {"enum": [1, 2]},
        "list of (text or integer)": {"type": "array", "items": {"type": ["string", "integer"]}},
        "list of {text: text}": {"type": "array", "items": part},
        "object": {"type": "object"},
        "any": {},
    }
    properties = {f"field{number}": schema for number, schema in enumerate(wanted.values())}
    body = {"content": {"application/json": {"schema": {"type": "object", "properties": properties}}}}
    operation = {"operationId": "x", "summary": "x", "requestBody": body, "responses": {}}
    document = {
        "info": {"title": "a", "version": "1"},
        "paths": {"/x": {"post": operation}},
        "components": {"schemas": schemas},
    }
    cells = re.findall(r"<tr><td><code>field\d</code></td><td>(.*?)</td>", render_page(document))
    assert cells == list(wanted)
