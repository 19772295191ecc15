"""What fields mean, in the words of docs/: of tables there whose columns are a field, maybe what it must be, and its
meaning.

Owns where in docs/ the fields of each body are told. Must not know any field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

Meanings = Mapping[str, Mapping[str, str]]
"""By place, which is `page.md#heading` or, of a table that is for one route, `page.md#/route`: field -> its meaning."""

_SHARED = "requests.md#Fields of both generation routes"
_FORMS = "requests.md#The form of the answer"
_THOUGHTS = "requests.md#Thoughts"
_OPENAI = (_SHARED, _FORMS, "requests.md#Parts of objects")
_ANTHROPIC = ("anthropic.md#Fields", "anthropic.md#Parts of objects", _SHARED)
_RESPONSES = ("responses.md#Fields", "responses.md#Parts of objects", _SHARED)
_LLAMA = ("llama-server.md#Fields of /completion and /infill", "llama-server.md#Parts of objects", _SHARED, _FORMS)
_OLLAMA_EMBED = ("ollama.md#Embeddings",)
_CHAT = "requests.md#Only chat"

PLACES: Mapping[str, tuple[str, ...]] = {
    "ChatFields": (_CHAT, _THOUGHTS, *_OPENAI),
    "CompletionFields": ("requests.md#Only completions", *_OPENAI),
    "EmbeddingFields": ("requests.md#Embeddings",),
    "RerankFields": ("requests.md#Reranking",),
    "ResponsesFields": _RESPONSES,
    "CountFields": _RESPONSES,
    "MessageFields": _ANTHROPIC,
    "PromptFields": _ANTHROPIC,
    "LlamaCompletionFields": ("llama-server.md#/completion", *_LLAMA),
    "LlamaInfillFields": ("llama-server.md#/infill", *_LLAMA),
    "LlamaEmbeddingFields": ("llama-server.md#/embedding",),
    "TokenizeFields": ("llama-server.md#/tokenize",),
    "DetokenizeFields": ("llama-server.md#/detokenize",),
    "ApplyTemplateFields": (_CHAT, _THOUGHTS),
    "OllamaGenerateFields": ("ollama.md#/api/generate", "ollama.md#Generating"),
    "OllamaChatFields": ("ollama.md#/api/chat", "ollama.md#Generating"),
    "OllamaOptions": ("ollama.md#Options", _SHARED),
    "OllamaEmbedFields": _OLLAMA_EMBED,
    "OllamaEmbeddingsFields": _OLLAMA_EMBED,
}
"""Where the fields of a body are told, by the name of its model; the first place that tells one counts."""


def read_meanings(folder: Path) -> Meanings:
    """Return the meaning of each field as a sentence or several, by the place that tells it."""
    found: dict[str, dict[str, str]] = {}
    for document in sorted(folder.glob("*.md")):
        for place, name, meaning in _rows(document.read_text(encoding="utf-8")):
            found.setdefault(f"{document.name}#{place}", {}).setdefault(name, meaning)
    return found


def meaning_of(body: str, field: str, meanings: Meanings) -> str:
    """Return what `field` means in the body of this name, with its default; "" = nothing tells it.

    A field inside another one is `outer.inner`.
    """
    return next((told for place in PLACES[body] if (told := meanings.get(place, {}).get(field))), "")


def without_links(text: str) -> str:
    """Return Markdown without its links; their texts stay."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _rows(document: str) -> Iterator[tuple[str, str, str]]:
    """Return (place, field, meaning) of all tables that tell what fields mean."""
    for section in re.split(r"^#+ ", document, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        for found in re.finditer(r"([^\n]*)\n*((?:^\|.*\n)+)", section, re.MULTILINE):
            route = re.search(r"`(/[\w/-]+)`[^`]*:$", found[1])
            for name, meaning in _table(found[2]):
                yield route[1] if route else heading, name, meaning


def _table(table: str) -> Iterator[tuple[str, str]]:
    head, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines())
    if head[0] not in ("field", "option") or head[-1] != "meaning" or head[1] not in ("it must be", "meaning"):
        return
    for row in rows:
        if "](" in row[0] or not row[-1]:  # a row about many fields, or one that says nothing
            continue
        meaning = re.sub(r"[;:,]? see (below|above)\b", "", without_links(row[-1])).replace("\\|", "|")
        default = f" Default: `{row[2].strip('`')}`." if "default" in head and row[2] else ""
        for name in re.findall(r"`([^`]+)`", row[0]):
            yield name, meaning + default
