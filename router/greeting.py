"""What `corral serve` says at a terminal once it listens: what is served, and how to ask for it.

Pure: it is given all that it tells. Owns the words.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from router.catalog import Catalog


def greet(
    catalog: Catalog,
    *,
    version: str,
    url: str,
    reach: str,
    problems: Mapping[str, str],
    has_keys: bool,
    edits: str | None,
    admin_url: str | None = None,
) -> str:
    """Return the text. `problems` tells, by name, why models cannot be used now; `edits`, what becomes of those.

    `admin_url`: the only address at which operators are answered, where they have one of their own.
    """
    lines = [f"Corral {version} serves {_count(catalog, problems)} at {url}{f', {reach}' if reach else ''}", ""]
    width = max((len(name) for name in catalog.models), default=0)
    for name, spec in catalog.models.items():
        notes = [f"unavailable: {problems[name]}"] if name in problems else []
        notes += [f"also called {', '.join(spec.aliases)}"] if spec.aliases else []
        lines.append(f"  {name:<{width}}  {'; '.join(notes)}".rstrip())
    lines += [
        "",
        f"OpenAI's clients use {url}/v1 as their base URL; Anthropic's, Ollama's and llama-server's use {url}",
        f"All routes, to read and to try: {url}/docs",
    ]
    if admin_url is not None:
        lines.append(f"Commands that load, unload or change something: CORRAL_URL={admin_url}")
    usable = next((name for name in catalog.models if name not in problems), None)
    if usable is not None:
        lines += ["", "Try it:", f"  {_curl(url, usable, has_keys=has_keys)}"]
    lines += ["", " ".join(filter(None, (edits, "Ctrl-C stops the server.")))]
    return "\n".join(lines) + "\n"


def _count(catalog: Catalog, problems: Mapping[str, str]) -> str:
    number = len(catalog.models)
    count = "1 model" if number == 1 else f"{number} models"
    lacking = sum(name in problems for name in catalog.models)
    return f"{count}, {lacking} of them unavailable," if lacking else count


def _curl(url: str, model: str, *, has_keys: bool) -> str:
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 48}
    body = json.dumps(asked, ensure_ascii=False)
    key = "-H 'Authorization: Bearer KEY' " if has_keys else ""
    return f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d {shlex.quote(body)}"
