"""The loader of models.yaml: any text is a catalogue or has problems, each with a place that exists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from router.catalog_parser import read_catalog
from router.yaml_lines import Place, YamlMap, YamlNode, YamlScalar, read_yaml
from tests.fuzz.parsers.subject import Subject

_PATH = Path("/nowhere/models.yaml")
_ROOT = Path(__file__).parents[3]


def check(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    lines = text.splitlines() or [""]
    document = read_yaml(text)
    for problem in document.problems:
        assert problem.message
        _check_place(problem.place, lines)
    if document.root is not None:
        for node in _nodes(document.root):
            _check_place(node.place, lines)
            assert not isinstance(node, YamlScalar) or isinstance(node.value, str | int | float | bool | None)
    if not document.problems:
        try:
            num_events = sum(1 for _ in yaml.parse(text, Loader=yaml.CSafeLoader))
        except yaml.YAMLError as error:
            raise AssertionError(f"what is no YAML was read without a problem: {error}") from None
        assert document.root is not None or num_events == 2, "something was lost"
    reading = read_catalog(text, _PATH)
    for found in reading.problems:
        assert found.message
        assert found.line is not None
        _check_place(Place(found.line, found.column or 1), lines)
        found.describe(_PATH)
    assert reading.problems or not document.problems
    assert reading.problems or (document.root is not None)


def _check_place(place: Place, lines: list[str]) -> None:
    assert 1 <= place.line <= len(lines) + 1, (place, len(lines))
    width = len(lines[place.line - 1]) if place.line <= len(lines) else 0
    assert 1 <= place.column <= width + 1, (place, width)


def _nodes(root: YamlNode) -> Iterator[YamlNode]:
    """Yield every node once, however often it is referenced."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, YamlMap):
            stack += [entry.value for entry in node.entries.values()]
        elif not isinstance(node, YamlScalar):
            stack += node.items


def seeds() -> Iterator[bytes]:
    yield (_ROOT / "models.yaml").read_bytes()
    yield b"models:\n  a: {model: ./a.gguf, slots: 4, context: 8k, idle_unload_s: 5m}\n"
    yield b"models: &m\n  a: &a {model: ./a.gguf}\n  b: {<<: *a, aliases: [x, {y: {temperature: 0.5}}]}\n"
    yield b"limits: {max_loaded: 2}\ndefaults: {slots: 2}\nmodels: {a: hf:x/y:Q4_0, r: {url: https://h/v1}}\n"
    yield b"keys: {team: {env: X, models: [a, b-*], max_priority: 5, weight: 2}}\nmodels: {a: ./a.gguf}\n"
    yield b"# nothing\n"
    yield b"- 1\n- !!int 0x1F\n- !!python/object/apply:os.system [x]\n- 'it''s'\n- \"\\u00e9\\n\"\n- |\n  text\n"
    yield b"a: [b, {c: d}, *x]\n? [complex]\n: ~\n--- \n..."


SUBJECT = Subject(
    "catalog",
    check,
    seeds,
    (
        *(
            b"models:",
            b"limits:",
            b"defaults:",
            b"keys:",
            b"devices:",
            b"default_model:",
            b"model: ",
            b"url: ",
            b"aliases: ",
        ),
        *(
            b"slots: ",
            b"context: ",
            b"loras: ",
            b"request: ",
            b"hooks: ",
            b"env: ",
            b"template: ",
            b"replicas: ",
            b"draft: ",
        ),
        *(
            b"<<: *a",
            b"&a ",
            b"*a",
            b"!!int ",
            b"!!float ",
            b"!!bool ",
            b"!!binary ",
            b"!x ",
            b"? ",
            b": ",
            b"- ",
            b"---\n",
        ),
        *(
            b"...\n",
            b"%YAML 1.2\n",
            b"\n  ",
            b"\t",
            b"\r\n",
            b"\xc2\x85",
            b"\xe2\x80\xa8",
            b"\xef\xbb\xbf",
            b"[",
            b"]",
            b"{",
        ),
        *(
            b"}",
            b"'",
            b'"',
            b"|\n",
            b">-\n",
            b".inf",
            b"0x",
            b"1e9",
            b"1_000",
            b"~",
            b"#",
            b"\xf0\x9f\x90\x8e",
            b"*" * 20,
        ),
    ),
)
