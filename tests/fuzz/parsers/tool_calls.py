"""Readers of what models write: the same however it is cut, calls that can be made, and no word lost.

An input is a line that says how it is read (a family, `tokens` = its markers are tokens, `cut` = the answer was cut,
`thinks` = thoughts stand in tags), then the text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence

from tests.fuzz.parsers.subject import Subject, cuts_of
from tests.support.answer_vectors import TOOLS, parts_of, plain_text, read
from worker.chat.answer_reader import AnswerForm
from worker.chat.deltas import CallArguments, CallStart, Delta
from worker.chat.marks import BEGIN, END, Markers, marked
from worker.chat.reasoning import KNOWN_TAGS, Tags
from worker.chat.tool_calls.families import FAMILIES

_BY_NAME = {family.name: family for family in FAMILIES}
_TAGS = KNOWN_TAGS[0]


def check(data: bytes) -> None:
    line, _, body = data.partition(b"\n")
    name, *flags = line.decode("utf-8", "replace").split(" ")
    family = _BY_NAME.get(name) or FAMILIES[zlib.crc32(line) % len(FAMILIES)]
    text = body.decode("utf-8", "replace")
    tags: Tags | None = _TAGS if "thinks" in flags else None
    markers = Markers()
    if "tokens" in flags:
        markers = Markers(
            {one: number for number, one in enumerate((*family.markers, *(tags.markers if tags else ())))}
        )
    form = AnswerForm(markers, tags, "inside" in flags, family, TOOLS, lambda index, _: f"call_{index}")
    is_cut = "cut" in flags
    whole = read(form, [text], is_cut=is_cut)
    for pieces in cuts_of(text, data):
        found = read(form, pieces, is_cut=is_cut)
        assert found == whole, f"{pieces}: {found} instead of {whole}"
    _check_calls(whole, is_cut=is_cut)
    _check_text(whole, text, (*family.markers, *_TAGS.markers), is_cut=is_cut)


def _check_calls(deltas: Sequence[Delta], *, is_cut: bool) -> None:
    """Calls are numbered, of tools that there are, and their arguments are JSON objects unless they were cut."""
    starts = [delta for delta in deltas if isinstance(delta, CallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert all(start.name in TOOLS.by_name for start in starts)
    if not is_cut:
        arguments = [delta.text for delta in deltas if isinstance(delta, CallArguments)]
        assert len(arguments) == len(starts)
        assert all(isinstance(json.loads(text), dict) for text in arguments), arguments


def _check_text(deltas: Sequence[Delta], text: str, markers: Sequence[str], *, is_cut: bool) -> None:
    """Where nothing is called and no marker stands, the text is the answer; of a cut one half a call is left out."""
    parts = parts_of(deltas)
    if BEGIN in text or END in text or any(marker in text for marker in markers):
        return
    if all(part[0] == "text" for part in parts):
        shown = "".join(part[1] for part in parts)
        assert shown.split() == text.split() or (is_cut and _bare(text).startswith(_bare(shown)))


def _bare(text: str) -> str:
    return "".join(text.split())


def seeds() -> Iterator[bytes]:
    from tests.worker.chat.tool_calls.test_any_output import VECTORS

    for number, vector in enumerate(VECTORS):
        for family in FAMILIES:
            if all(marker in family.markers for marker in _markers_of(vector.output)) and _markers_of(vector.output):
                if number % 2:
                    yield f"{family.name}\n{plain_text(vector)}".encode()
                else:
                    yield f"{family.name} tokens\n{_marked(vector.output)}".encode()
                break
    for family in FAMILIES:
        yield f"{family.name} thinks cut\n<think>so</think>{''.join(family.triggers)}{{".encode()


def _markers_of(output: str) -> list[str]:
    return [part.split("»")[0] for part in output.split("«")[1:]]


def _marked(output: str) -> str:
    return output.replace("«", BEGIN).replace("»", END)


def _words() -> Iterator[bytes]:
    for family in FAMILIES:
        for marker in (*family.markers, *family.triggers):
            yield marker.encode()
            yield marked(marker).encode()
    for text in (
        *("get_weather", "search", "now", "city", "days", "query", "tags", "filter", "name", "arguments", "parameters"),
        *('{"name": "now", "arguments": {}}', '{"city": "Paris"}', "now()", 'search(query="x")', "to=functions.now"),
        *(
            "```json\n",
            "```",
            "<think>",
            "</think>",
            '"',
            "'",
            "\\",
            "\\u00",
            "\\ud83d",
            "[",
            "]",
            "{",
            "}",
            "(",
            ")",
            ":",
        ),
        *(",", "=", "\n", " ", "true", "null", "None", "1e5", "-", "Action:", "é", "🙂", "[" * 200, '{"a":' * 100),
    ):
        yield text.encode()


SUBJECT = Subject("tool_calls", check, seeds, tuple(dict.fromkeys(word for word in _words() if word)), max_size=800)
