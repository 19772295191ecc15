"""An OpenAPI document as one HTML page that needs nothing else: no script, no font, no other server.

Owns the look. Must not know any route: what it shows is all in the document.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

_DEPTH = 4
"""Levels of objects inside a field that are spelt out."""
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1.5rem;
  color: #1c1c1c; background: #fff }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
code { font: 0.9em ui-monospace, monospace; background: #f1f1f1; padding: 0 .2em; border-radius: .2em }
nav { columns: 18rem } nav a { display: block; text-decoration: none; white-space: nowrap }
details { border: 1px solid #ccc; border-radius: .4rem; margin: .6rem 0; padding: .4rem .8rem }
summary { cursor: pointer } summary b { display: inline-block; min-width: 4rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 } caption { text-align: left; font-weight: 600 }
td, th { text-align: left; vertical-align: top; border-top: 1px solid #ddd; padding: .25rem .5rem }
td:first-child, th:first-child { white-space: nowrap; padding-left: 0 }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #181818 } code { background: #2c2c2c } a { color: #8ab4f8 }
  h2, details, td, th { border-color: #444 }
}
@media print { details > * { display: block } }
"""


def render_page(document: Json) -> str:
    """Return the page. Everything of the document is escaped."""
    info = document["info"]
    groups = _groups(document)
    schemas = document.get("components", {}).get("schemas", {})
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{_text(info['title'])} {_text(info['version'])}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(info['title'])} {_text(info['version'])}</h1>",
        *(f"<p>{_text(one)}</p>" for one in info.get("description", "").split("\n\n")),
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>',
        "<nav>",
        *(f'<a href="#{_anchor(tag)}">{_text(tag)} ({len(group)})</a>' for tag, group in groups.items()),
        "</nav>",
    ]
    for tag, group in groups.items():
        parts.append(f'<h2 id="{_anchor(tag)}">{_text(tag)}</h2>')
        parts += (_operation(method, path, operation, schemas) for method, path, operation in group)
    return "\n".join([*parts, "</body></html>", ""])


def _groups(document: Json) -> dict[str, list[tuple[str, str, Json]]]:
    found: dict[str, list[tuple[str, str, Json]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for tag in operation.get("tags", ["routes"]):
                found.setdefault(tag, []).append((method.upper(), path, operation))
    return found


def _operation(method: str, path: str, operation: Json, schemas: Json) -> str:
    parts = [
        f'<details id="{_anchor(operation["operationId"])}">',
        f"<summary><b>{method}</b> <code>{_text(path)}</code> {_text(operation['summary'])}</summary>",
    ]
    if "description" in operation:
        parts.append(f"<p>{_text(operation['description'])}</p>")
    if parameters := operation.get("parameters"):
        rows = [
            _row(one["name"], one["schema"], one["description"], one.get("required", False), schemas)
            for one in parameters
        ]
        parts.append(_fields("In the address", rows))
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(_fields(f"Body: {kind}", list(_property_rows(media["schema"], schemas))))
    parts.append(_replies(operation["responses"]))
    return "\n".join([*parts, "</details>"])


def _fields(caption: str, rows: list[str]) -> str:
    head = "<tr><th>field</th><th>type</th><th>what it must be</th></tr>"
    return f"<table><caption>{_text(caption)}</caption>{head}{''.join(rows)}</table>"


def _property_rows(schema: Json, schemas: Json) -> Iterator[str]:
    schema = _resolved(schema, schemas)
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    for name in sorted(properties, key=lambda name: name not in required):  # those that are needed come first
        field = properties[name]
        yield _row(name, field, field.get("description", ""), name in required, schemas)


def _row(name: str, schema: Json, description: str, is_required: bool, schemas: Json) -> str:
    told = _text(description)
    if is_required:
        told = f"<b>Required.</b> {told}"
    if "default" in schema:
        told += f" Default: <code>{html.escape(json.dumps(schema['default'], ensure_ascii=False))}</code>."
    return (
        f"<tr><td><code>{_text(name)}</code></td><td>{_text(_type(schema, schemas, _DEPTH))}</td><td>{told}</td></tr>"
    )


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
    if "$ref" not in schema:
        return schema
    found = dict(schemas[schema["$ref"].rpartition("/")[2]])
    return found | {key: value for key, value in schema.items() if key != "$ref"}


def _text(text: str) -> str:
    """Return `text` as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())
