"""What a shell offers while somebody types: names of models.

Owns where they come from: the running server if it answers at once, else the configuration that is here. Says nothing
and fails at nothing, whatever is wrong: a shell is no place for messages.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from router.cli.catalog_file import DEFAULT_FILE, FILE_VARIABLE
from router.cli.server import KEY_VARIABLE, URL_VARIABLE, default_url

if TYPE_CHECKING:
    from router.catalog import Catalog

ANSWER_S = 0.3
_MAX_BYTES = 2**21


def complete_models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the models of the running server that begin like this; of the configuration here if none answers."""
    names = _of_server(context.params.get("url") or os.environ.get(URL_VARIABLE) or default_url())
    return _items(_of_file(context) if names is None else names, _said(context, parameter), incomplete)


def complete_local_models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the models of the configuration here that begin like this, and leave files to the shell."""
    items = _items(_of_file(context), _said(context, parameter), incomplete)
    return items or [CompletionItem(incomplete, type="file")]


def _items(names: Iterable[str], said: Iterable[str], incomplete: str) -> list[CompletionItem]:
    used = set(said)
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in used]


def _said(context: click.Context, parameter: click.Parameter) -> tuple[str, ...]:
    """Return what stands there already, where a command takes several."""
    value = context.params.get(parameter.name or "")
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _of_file(context: click.Context) -> list[str]:
    from router.catalog_files import load_catalog
    from router.catalog_problems import CatalogError

    path = Path(context.params.get("file") or os.environ.get(FILE_VARIABLE) or DEFAULT_FILE)
    try:
        catalog: Catalog = load_catalog(path)
    except (CatalogError, OSError):
        return []
    return [name for name in catalog.listed_names() if "*" not in name]


def _of_server(url: str) -> list[str] | None:
    """Return the names that a server lists; None = nobody answers in time, or not with a list of models."""
    try:
        address = url.strip().rstrip("/").removesuffix("/v1")
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, port, timeout=ANSWER_S)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    try:
        connection.request("GET", f"{parts.path}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
        entries = json.loads(connection.getresponse().read(_MAX_BYTES))["data"]
        return [str(entry["id"]) for entry in entries if "*" not in str(entry["id"])]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
