"""What fields mean, in the words of docs/: of tables there whose columns are a field, what it must be, and its meaning.

Must not know any field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

FieldKey = tuple[str, str]
"""A field's name, and what it must be."""


def read_meanings(folder: Path) -> Mapping[FieldKey, str]:
    """Return the meaning of each field as a sentence or several; those that are told in different ways are left out."""
    found: dict[FieldKey, set[str]] = {}
    for document in sorted(folder.glob("*.md")):
        for key, meaning in _rows(document.read_text(encoding="utf-8")):
            found.setdefault(key, set()).add(meaning)
    return {key: next(iter(meanings)) for key, meanings in found.items() if len(meanings) == 1}


def without_links(text: str) -> str:
    """Return Markdown without its links; their texts stay."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _rows(document: str) -> Iterator[tuple[FieldKey, str]]:
    for table in re.findall(r"(?:^\|.*\n)+", document, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines())
        if head[:2] != ["field", "it must be"] or head[-1] != "meaning":
            continue
        for row in rows:
            name = re.fullmatch(r"`([^`]+)`", row[0])
            meaning = without_links(row[-1]).replace("\\|", "|")
            if "see below" in meaning.lower() or "see above" in meaning.lower():
                continue
            default = f"Default: `{row[2].strip('`')}`." if head[2] == "default" and row[2] else ""
            if name and (told := f"{meaning} {default}".strip()):
                yield (name[1], row[1]), told
