"""The whole page: families as Prometheus' text, as OpenMetrics, as JSON.

Owns what stands around the samples. Must not know which families there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import orjson

from router.metrics.families import Family

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JSON = "application/json"


def wants_openmetrics(accept: str) -> bool:
    """Return whether the header asks for OpenMetrics, and for nothing that is here more than for that.

    Source: RFC 9110, 12.4.2 and 12.5.1.
    """
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        if kind in weights:
            weight = next((word.removeprefix("q=") for word in parameters if word.startswith("q=")), "1")
            is_number = re.fullmatch(r"[01](\.\d{0,3})?", weight, re.ASCII) is not None
            weights[kind] = max(weights[kind], float(weight) if is_number else 1.0)
    wish = weights["application/openmetrics-text"]
    return wish > 0 and wish >= weights["text/plain"]


def encode_text(families: Iterable[Family]) -> bytes:
    """Return the page in Prometheus' text format. Source: prometheus.io, "Exposition formats", version 0.0.4."""
    parts = []
    for family in families:
        name = family.text_name
        parts.append(f"# HELP {name} {_escaped(family.help)}\n# TYPE {name} {family.text_type}\n".encode())
        parts += [block.text for block in family.blocks]
    return b"".join(parts)


def encode_openmetrics(families: Iterable[Family]) -> bytes:
    """Return the page as OpenMetrics text, with exemplars. Source: the specification of OpenMetrics 1.0."""
    parts = []
    for family in families:
        help_ = _escaped(family.help).replace('"', '\\"')
        parts.append(f"# HELP {family.name} {help_}\n# TYPE {family.name} {family.kind}\n".encode())
        parts += [block.openmetrics for block in family.blocks]
    return b"".join([*parts, b"# EOF\n"])


def encode_json(families: Iterable[Family]) -> bytes:
    """Return a list of the families with their samples, under the names of the text format."""
    return b"[" + b",\n".join(map(_as_object, families)) + b"]\n"


def _as_object(family: Family) -> bytes:
    head = orjson.dumps({"name": family.text_name, "type": family.text_type, "help": family.help})
    return head[:-1] + b',"samples":[' + b",".join([block.json for block in family.blocks]) + b"]}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
