"""What docs/ollama.md claims of fields and options is what the worker does."""

from __future__ import annotations

import json
import re

from tests.test_docs import VALUES, name_in, quoted, rows, section, text_of
from worker.api.ollama_chat import OllamaChatFields
from worker.api.ollama_fields import SPEED_OPTIONS, OllamaGenerationFields, OllamaOptions
from worker.api.ollama_generate import OllamaGenerateFields
from worker.api.refusals import Refused, Table
from worker.api.refused_everywhere import BOTH
from worker.api.refused_ollama import MISPLACED, OLLAMA, OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_OPTIONS
from worker.api.sampling_fields import SamplingFields

DOCUMENT = text_of("docs/ollama.md")


def _own(table: Table) -> dict[str, Refused]:
    """Return what is not told elsewhere: on the page of all requests, or as an option at the wrong place."""
    return {
        name: one
        for name, one in table.items()
        if name not in MISPLACED and (name not in BOTH or BOTH[name].passes is not one.passes)
    }


def told_in(part: str) -> dict[str, str]:
    return {name_in(row[0]): row[1] for row in rows(part)}


def test_every_field_of_generating_is_told_with_what_it_must_be() -> None:
    part = section(DOCUMENT, "## Generating")
    common, rest = part.split("Only `/api/generate`:")
    generate, chat = rest.split("Only `/api/chat`:")
    shared = OllamaGenerationFields.model_fields
    assert told_in(common).keys() == shared.keys()
    assert told_in(generate).keys() == OllamaGenerateFields.model_fields.keys() - shared.keys()
    assert told_in(chat).keys() == OllamaChatFields.model_fields.keys() - shared.keys()
    fields = {**OllamaGenerateFields.model_fields, **OllamaChatFields.model_fields}
    for name, told in told_in(part).items():
        assert told == fields[name].description, name


def test_every_option_of_ollamas_own_is_told() -> None:
    part = section(DOCUMENT, "## Options")
    own = OllamaOptions.model_fields.keys() - SamplingFields.model_fields.keys()
    assert told_in(part).keys() == own
    for name, told in told_in(part).items():
        assert told == OllamaOptions.model_fields[name].description, name
    same = part.partition("under the same names:")[2].partition("and all that Corral has")[0]
    assert set(quoted(same)) <= SamplingFields.model_fields.keys()
    passed_over = part.rpartition("not an answer:")[2].partition("\n\n")[0]
    assert quoted(passed_over) == list(SPEED_OPTIONS)


def test_every_refusal_is_told_with_the_values_that_pass() -> None:
    part = section(DOCUMENT, "## Refused unless harmless")
    bodies, options = (rows(table) for table in re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE))
    told = {name: set(quoted(row[1].partition("(")[0])) for row in bodies for name in quoted(row[0])}
    tables = _own({**OLLAMA, **OLLAMA_GENERATE, **OLLAMA_CHAT})
    assert told.keys() == tables.keys()
    told |= {name_in(row[0]): set(quoted(row[1])) for row in options}
    tables |= _own(OLLAMA_OPTIONS)
    assert told.keys() == tables.keys()
    for name, values in told.items():
        passing = {json.dumps(value) for value in VALUES if value is not None and tables[name].passes(value)}
        assert passing == values, name
    for row in bodies:
        only = re.search(r"\(only `/api/(\w+)`\)", row[1])
        for name in quoted(row[0]):
            where = {route for route, table in (("generate", OLLAMA_GENERATE), ("chat", OLLAMA_CHAT)) if name in table}
            assert where == ({only[1]} if only else {"generate", "chat"}), name
