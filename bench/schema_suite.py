"""The schemas of the JSON Schema test suite, out of the source package of `jsonschema`, which is fetched once.

What the library's grammar does with them is counted here, and each kind of difference has its reason.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.grammar_driver import takes
from router.sources import default_cache_dir
from worker.errors import RequestError
from worker.schemas.prepare import prepare_schema

DRAFTS: Final = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}

TOO_WIDE: Final = {
    "ecmascript-regex": "U+FEFF is white space to JavaScript and not to Unicode",
    "content": "contentEncoding and contentMediaType are always annotations, as they are since draft 2019-09",
}
"""Keywords of which a grammar lets an instance through that the suite calls invalid, and why."""

TOO_NARROW: Final = {
    "allOf": "properties are written in the order in which the schema names them",
    "const": "whole numbers are written without a decimal point; keys of objects in the order of the constant",
    "enum": "whole numbers are written without a decimal point",
    "type": "whole numbers are written without a decimal point",
    "float-overflow": "integers are written without an exponent",
    "format": "the form of well-known formats is enforced, which the standard leaves open",
    "ecmascript-regex": "control characters are not written; white space is what Unicode says",
    "ref": "what stands beside a `$ref` counts in old drafts too",
    "unevaluatedProperties": "properties are written in the order in which the schema names them",
    "vocabulary": "own dialects are read as draft 2020-12",
}
"""Keywords of which a grammar refuses a valid instance, and why. It may: there are others that say the same."""


@dataclass(frozen=True)
class Case:
    """One schema of the suite with its instances."""

    draft: str
    keyword: str
    """The name of its file."""
    description: str
    schema: Any
    instances: tuple[tuple[Any, bool], ...]


def suite() -> Iterator[Case]:
    """Yield every schema of the drafts that are in use, the optional ones too."""
    for draft, dialect in DRAFTS.items():
        folder = _unpacked() / "json" / "tests" / draft
        for file in sorted([*folder.glob("*.json"), *folder.glob("optional/*.json")]):
            for case in json.loads(file.read_text(encoding="utf-8")):
                schema = case["schema"]
                if isinstance(schema, dict) and "$schema" not in schema:
                    schema = {"$schema": dialect, **schema}
                instances = tuple((test["data"], test["valid"]) for test in case["tests"])
                yield Case(draft, file.stem, case["description"], schema, instances)


@functools.cache
def _unpacked() -> Path:
    version = importlib.metadata.version("jsonschema")
    folder = default_cache_dir() / "schema-suite" / f"jsonschema-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "jsonschema"]
            subprocess.run([*command, "--dest", scratch, f"jsonschema=={version}"], check=True, capture_output=True)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as opened:
                opened.extractall(scratch, filter="data")
            (Path(scratch) / folder.name).rename(folder)
    return folder


def outcome_of(schema: Any, *, relaxes: bool) -> str:
    """Return what becomes of a schema, in one word."""
    try:
        prepared = prepare_schema(schema, param="schema", relaxes=relaxes)
    except RequestError as error:
        return type(error).__name__
    return "relaxed" if prepared.relaxed else "enforced"


def differences() -> tuple[Counter[str], list[str]]:
    """Return how often an enforced schema is narrower than the suite, by keyword, and where one is wider."""
    narrower: Counter[str] = Counter()
    wider: list[str] = []
    for case in suite():
        if outcome_of(case.schema, relaxes=False) != "enforced":
            continue
        grammar = prepare_schema(case.schema, param="schema").to_grammar()
        for instance, is_valid in case.instances:
            if takes(grammar, json.dumps(instance, ensure_ascii=False)) is is_valid:
                continue
            if is_valid:
                narrower[case.keyword] += 1
            else:
                wider.append(f"{case.keyword}: {case.draft}, {case.description}, {instance!r}")
    return narrower, wider
