"""The rows of constrained answers."""

from __future__ import annotations

from collections.abc import Sequence

from bench import grammar_scenarios as of
from bench.figures import ITSELF, PLAIN, Target
from bench.models import GEMMA3, QWEN, SMOLLM2
from bench.row import Row

GRAMMAR_ROWS: Sequence[Row] = (
    *(
        Row(
            f"constrained-{model}-{streams}",
            f"answers under a JSON schema, {streams} stream{'s'[: streams > 1]} of {tokens} tokens",
            of.constrained(streams, tokens),
            slots=streams,
            guess_s=guess_s,
            model=model,
            extras=(PLAIN,),
            targets=(Target(of.OF_FREE, 0.95, ITSELF), Target(of.CONSTRAINED, 1.0)),
            max_turns=3,
        )
        for model, streams, tokens, guess_s in (
            (SMOLLM2, 1, 64, 12.0),
            (SMOLLM2, 8, 64, 40.0),
            (QWEN, 1, 32, 14.0),
            (QWEN, 8, 32, 50.0),
            (GEMMA3, 8, 32, 40.0),
        )
    ),
    Row(
        "new-schemas",
        "4 free streams beside schemas that were never seen before",
        of.beside_new_schemas,
        slots=5,
        guess_s=12.0,
        targets=(Target(of.GAP_OF_FREE, None, ITSELF, aim=1.5),),
        max_turns=3,
    ),
    *(
        Row(
            f"grammar-libraries-{model}",
            "the cost of a token under a schema, without a server",
            of.libraries,
            slots=1,
            guess_s=12.0,
            model=model,
            family=None,
            max_turns=1,
        )
        for model in (SMOLLM2, QWEN, GEMMA3)
    ),
    Row(
        "schemas",
        "public schemas and those of tools: enforced, checked afterwards, refused",
        of.corpora,
        slots=1,
        guess_s=60.0,
        family=None,
        max_turns=1,
    ),
)
