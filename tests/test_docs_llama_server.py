"""What docs/llama-server.md claims of fields and refusals is what the code does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.test_docs import VALUES, name_in, own_of, quoted, rows, section, text_of
from worker.api.format_fields import FormatFields
from worker.api.llama_completion import LlamaCompletionFields
from worker.api.llama_fields import LlamaFields
from worker.api.llama_infill import LlamaInfillFields
from worker.api.refused_everywhere import BOTH
from worker.api.refused_llama import LLAMA
from worker.api.sampling_fields import SamplingFields

DOCUMENT = text_of("docs/llama-server.md")


@pytest.mark.parametrize(
    ("table", "fields", "shared"),
    [
        (0, LlamaFields.model_fields, {**SamplingFields.model_fields, **FormatFields.model_fields}),
        (1, LlamaCompletionFields.model_fields, LlamaFields.model_fields),
        (2, LlamaInfillFields.model_fields, LlamaFields.model_fields),
    ],
)
def test_every_field_is_listed_with_what_it_must_be(
    table: int, fields: Mapping[str, Any], shared: Mapping[str, Any]
) -> None:
    part = section(DOCUMENT, "## Fields of /completion and /infill")
    listed = {name_in(row[0]): row[1] for row in rows(re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)[table])}
    assert listed == {name: fields[name].description for name in fields.keys() - shared.keys()}


def test_every_refused_field_is_listed_with_the_values_that_pass() -> None:
    own = own_of(LLAMA)
    listed = {name_in(row[0]): quoted(row[1]) for row in rows(section(DOCUMENT, "## Refused unless harmless"))}
    assert listed.keys() == own.keys()
    assert BOTH.keys() <= LLAMA.keys() | LlamaFields.model_fields.keys()
    for name, told in listed.items():
        passing = [json.dumps(value) for value in VALUES if value is not None and LLAMA[name].passes(value)]
        assert sorted(passing) == sorted(told), name
