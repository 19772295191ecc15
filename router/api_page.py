"""An OpenAPI document as one HTML page that needs nothing else: no script, no font, no other server.

Owns the look. Must not know any route: what it shows is all in the document.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

_DEPTH = 4
"""Levels of objects inside a field that are spelt out, at most."""
_TYPE_CHARS = 120
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --soft: #f3f3f1; --line: #d5d5d0; --link: #1a56b0 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e0; --paper: #171716; --soft: #262624; --line: #43433f; --link: #8ab4f8 }
}
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; color: var(--ink); background: var(--paper) }
main { max-width: 60rem; padding: 1rem 1.25rem 4rem; margin: 0 auto; width: 100% }
h1, h2, h3 { line-height: 1.25 } h2 { margin-top: 3rem; border-bottom: 2px solid var(--line) }
h3 { margin: 2rem 0 .25rem; font-weight: 400; font-size: 1.05rem; overflow-wrap: anywhere }
h2, section { scroll-margin-top: .75rem } section > p { margin: .25rem 0 }
a { color: var(--link) }
code { font: .9em ui-monospace, monospace; background: var(--soft); padding: 0 .2em; border-radius: .2em }
pre { background: var(--soft); padding: .6rem .8rem; border-radius: .4rem; white-space: pre-wrap;
  overflow-wrap: anywhere }
pre code { padding: 0; background: none }
nav { font-size: .875rem } nav a { display: block; padding: .1rem 0; text-decoration: none; overflow-wrap: anywhere }
nav > a { display: grid; grid-template-columns: 3.6rem 1fr } nav b { display: block; margin-top: .8rem }
nav small { opacity: .7 }
.side { display: none }
.top, section details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; padding: .35rem .8rem }
summary { cursor: pointer }
table { border-collapse: collapse; width: 100%; margin: .75rem 0 } caption { text-align: left; font-weight: 600 }
td, th { text-align: left; vertical-align: top; border-top: 1px solid var(--line); padding: .25rem .6rem .25rem 0 }
td { overflow-wrap: anywhere } td:first-child { min-width: 9rem }
@media (max-width: 40rem) {
  tr, td { display: block } th { display: none } td { border: 0; padding: 0 } tr { border-top: 1px solid var(--line) }
  tr { padding: .35rem 0 }
}
@media (min-width: 64rem) {
  body { display: grid; grid-template-columns: 19rem minmax(0, 1fr) } .top { display: none }
  .side { display: block; position: sticky; top: 0; height: 100vh; overflow-y: auto; padding: 1rem;
    background: var(--soft); border-right: 1px solid var(--line) }
}
@media print { .side, .top { display: none } }
"""


def render_page(document: Json, site: str = "127.0.0.1:8080") -> str:
    """Return the page; the examples on it ask `site`. Everything of the document is escaped."""
    info = document["info"]
    groups = _groups(document)
    links = _links(groups)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(info['title'])} {_text(info['version'])}</title><style>{_STYLE}</style></head><body>",
        f'<nav class="side">{links}</nav>',
        f"<main><h1>{_text(info['title'])} {_text(info['version'])}</h1>",
        *(f"<p>{_text(one)}</p>" for one in info.get("description", "").split("\n\n")),
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>',
        f'<details class="top"><summary>All routes</summary><nav>{links}</nav></details>',
    ]
    for tag, group in groups.items():
        parts.append(f'<h2 id="{_anchor(tag)}">{_text(tag)}</h2>')
        parts += (_operation(method, path, operation, document, site) for method, path, operation in group)
    return "\n".join([*parts, "</main></body></html>", ""])


def _groups(document: Json) -> dict[str, list[tuple[str, str, Json]]]:
    found: dict[str, list[tuple[str, str, Json]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for tag in operation.get("tags", ["routes"]):
                found.setdefault(tag, []).append((method.upper(), path, operation))
    return found


def _links(groups: Mapping[str, list[tuple[str, str, Json]]]) -> str:
    """Return links to all routes but other forms of a route."""
    parts = []
    for tag, group in groups.items():
        parts.append(f'<b><a href="#{_anchor(tag)}">{_text(tag)}</a></b>')
        parts += (
            f'<a href="#{_anchor(operation["operationId"])}"><small>{method}</small> {_text(path)}</a>'
            for method, path, operation in group
            if "x-form-of" not in operation
        )
    return "".join(parts)


def _operation(method: str, path: str, operation: Json, document: Json, site: str) -> str:
    schemas = document.get("components", {}).get("schemas", {})
    told = operation.get("description", "").split("\n\n")
    plain = [one for one in told if one and not one.startswith("Refused ")]
    refused = [one for one in told if one.startswith("Refused ")]
    parts = [
        f'<section id="{_anchor(operation["operationId"])}">',
        f"<h3><b>{method}</b> <code>{_text(path)}</code></h3>",
        f"<p>{_text(operation['summary'])} {' '.join(map(_text, plain))}</p>",
    ]
    tables = []
    if parameters := operation.get("parameters"):
        rows = [
            _row(one["name"], one["schema"], one["description"], one.get("required", False), schemas)
            for one in parameters
        ]
        tables.append(_fields("In the address", rows))
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        if "example" in media:
            body = json.dumps(media["example"], ensure_ascii=False)
            parts.append(f"<pre><code>{html.escape(_curl(site + path, body))}</code></pre>")
        tables.append(_fields(f"Body: {kind}", list(_property_rows(media["schema"], schemas))))
    responses = {
        status: _resolved(one, document.get("components", {}).get("responses", {}))
        for status, one in operation["responses"].items()
    }
    tables.append(_replies(responses))
    if rows := list(_member_rows(_json_of(responses), schemas)):
        tables.append(_fields("What is in it (200)", rows, "what it is"))
    parts.append(f"<details><summary>Fields and replies</summary>{''.join(tables)}</details>")
    if refused:
        parts.append(f"<details><summary>Fields that it refuses</summary>{_paragraphs(refused)}</details>")
    return "\n".join([*parts, "</section>"])


def _curl(address: str, body: str) -> str:
    return f"curl {address} -d '{body}'"


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{_text(one)}</p>" for one in texts)


def _fields(caption: str, rows: list[str], told: str = "what it must be, and what it means") -> str:
    head = f"<tr><th>field</th><th>type</th><th>{told}</th></tr>"
    return f"<table><caption>{_text(caption)}</caption>{head}{''.join(rows)}</table>"


def _property_rows(schema: Json, schemas: Json, outer: str = "") -> Iterator[str]:
    """Return the rows of an object's fields; those of objects that have a name of their own follow the field."""
    schema = _resolved(schema, schemas)
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    for name in sorted(properties, key=lambda name: name not in required):  # those that are needed come first
        field = properties[name]
        part = next((one for one in [field, *field.get("anyOf", ())] if "$ref" in one), None)
        shown = field if part is None else {"type": "object"}
        yield _row(outer + name, shown, field.get("description", ""), name in required, schemas)
        if part is not None:
            yield from _property_rows(part, schemas, f"{outer}{name}.")


def _json_of(responses: Json) -> Json:
    content = responses.get("200", {}).get("content", {})
    schema: Json = content.get("application/json", {}).get("schema", {})
    return schema


def _member_rows(schema: Json, schemas: Json, outer: str = "") -> Iterator[str]:
    """Return the rows of all members of a reply, of inner objects and of objects in lists too."""
    schema = _resolved(schema, schemas)
    if schema.get("type") == "array":
        yield from _member_rows(schema["items"], schemas, f"{outer.removesuffix('.')}[].") if "items" in schema else ()
    for one in schema.get("anyOf", ()):
        yield from _member_rows(one, schemas, outer)
    for name, member in schema.get("properties", {}).items():
        resolved = _resolved(member, schemas)
        kind = resolved.get("type")
        if kind == "object":
            shown: Json = {"type": "object"}
        elif kind == "array" and "properties" in _resolved(resolved.get("items", {}), schemas):
            shown = {"type": "array", "items": {"type": "object"}}
        else:
            shown = resolved
        yield _row(outer + name, shown, resolved.get("description", ""), False, schemas)
        if kind in ("array", "object"):
            yield from _member_rows(resolved, schemas, f"{outer}{name}.")


def _row(name: str, schema: Json, description: str, is_required: bool, schemas: Json) -> str:
    told = _text(description)
    if is_required:
        told = f"<b>Required.</b> {told}"
    if "default" in schema:
        told += f" Default: <code>{html.escape(json.dumps(schema['default'], ensure_ascii=False))}</code>."
    return f"<tr><td><code>{_text(name)}</code></td><td>{_text(_short_type(schema, schemas))}</td><td>{told}</td></tr>"


def _short_type(schema: Json, schemas: Json) -> str:
    """Return the type with as many levels of objects spelt out as can be read at a glance."""
    levels = (_type(schema, schemas, depth) for depth in range(_DEPTH, 0, -1))
    return next((words for words in levels if len(words) <= _TYPE_CHARS), _type(schema, schemas, 0))


def _type(schema: Json, schemas: Json, depth: int) -> str:
    """Return the type in words, such as `list of (text or integer)`; null, which every field takes, is left out."""
    schema = _resolved(schema, schemas)
    if "const" in schema or "enum" in schema:
        return " or ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    if alternatives := schema.get("anyOf", schema.get("oneOf")):
        words = dict.fromkeys(_type(one, schemas, depth) for one in alternatives if one.get("type") != "null")
        return " or ".join(words)
    kind = schema.get("type", "any")
    if kind == "array":
        items = _type(schema.get("items", {}), schemas, depth)
        return f"list of ({items})" if " or " in items else f"list of {items}"
    if kind == "object" and depth > 0 and (properties := schema.get("properties")):
        shown = (f"{name}: {_type(one, schemas, depth - 1)}" for name, one in properties.items())
        return f"{{{', '.join(shown)}}}"
    kinds = [kind] if isinstance(kind, str) else kind
    return " or ".join("text" if one == "string" else one for one in kinds if one != "null")


def _replies(responses: Json) -> str:
    rows = []
    for status, response in responses.items():
        kinds = ", ".join(f"<code>{_text(kind)}</code>" for kind in response.get("content", {}))
        rows.append(f"<tr><td>{_text(status)}</td><td>{kinds}</td><td>{_text(response['description'])}</td></tr>")
    head = "<tr><th>status</th><th>type</th><th>when</th></tr>"
    return f"<table><caption>Replies</caption>{head}{''.join(rows)}</table>"


def _resolved(schema: Json, schemas: Json) -> Json:
    """Return what `schema` refers to, with what it says besides; itself if it refers to nothing."""
    if "$ref" not in schema:
        return schema
    found = dict(schemas[schema["$ref"].rpartition("/")[2]])
    return found | {key: value for key, value in schema.items() if key != "$ref"}


def _text(text: str) -> str:
    """Return `text` as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())
