"""Ollama's `POST /api/pull`: a model's file brought to this machine, with lines that tell how far it is.

Owns which names can be pulled and what the lines say. The fetch is the store's: it goes on when its client leaves.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from router.auth import Scope
from router.catalog import Catalog
from router.dialects import Dialect
from router.errors import BadRequest, ModelNotFound, ModelUnavailable
from router.fetch.protocol import JOINING, VERIFYING, FetchProgress, SourceError
from router.json_reply import json_response
from router.ollama import named_in, read_fields
from router.ollama_names import LATEST, find_exact, find_tagged, not_found
from router.references import HubReference, Reference, parse_reference
from router.routes import Route
from router.services import SERVICES, Services, current_exchange
from router.worker_files import ModelFiles

logger = logging.getLogger(__name__)

_HUB_HOSTS = ("hf.co/", "huggingface.co/")
_DEFAULT_QUANT = "Q4_K_M"
"""What Ollama takes of a repository when a name says no more."""

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pull:
    """One thing to fetch."""

    reference: Reference
    base_dir: Path
    is_served: bool
    """It is a model of models.yaml."""

    @property
    def digest(self) -> str:
        """What tells its lines apart from others': a digest of the reference."""
        return "sha256:" + hashlib.sha256(str(self.reference).encode()).hexdigest()


def find_pull(catalog: Catalog, name: str) -> Pull:
    """Return what `name` asks for: a model of the catalogue, or a file on the Hugging Face Hub.

    Raises: BadRequest for a reference that is none; ModelNotFound.
    """
    reference = None if find_exact(catalog, name) else _hub_reference(name)
    if reference is not None:  # before aliases with a `*`, which may stand for any name
        return Pull(reference, Path(), is_served=_is_served(catalog, reference))
    try:
        spec = find_tagged(catalog, name).spec
    except ModelNotFound:
        raise ModelNotFound(
            f"{not_found(catalog, name)}. Models are pulled by their names in models.yaml, or by a reference such as "
            f"hf:OWNER/REPO:Q4_K_M, also written hf.co/OWNER/REPO:Q4_K_M; Ollama's own registry is not known here.",
            param="model",
        ) from None
    if spec.remote is not None:
        raise BadRequest(
            f"`{spec.name}` is answered by another server (`url`): there is no file to pull", param="model"
        )
    return Pull(parse_reference(spec.source), spec.base_dir, is_served=True)


def _hub_reference(name: str) -> HubReference | None:
    """Return the Hub's file that `name` stands for; None when it is no such reference. Raises: BadRequest."""
    text = name.removeprefix("https://").removeprefix("http://")
    host = next((host for host in _HUB_HOSTS if text.startswith(host)), None)
    if host is not None:
        text = text.removeprefix(host).removesuffix(LATEST)
        is_whole_repository = text.count("/") == 1 and ":" not in text
        text = f"hf:{text}:{_DEFAULT_QUANT}" if is_whole_repository else f"hf:{text}"
    if not text.startswith("hf:"):
        return None
    try:
        reference = parse_reference(text)
    except ValueError as error:
        raise BadRequest(str(error), param="model") from None
    assert isinstance(reference, HubReference)
    return reference


def _is_served(catalog: Catalog, reference: Reference) -> bool:
    return any(spec.source == str(reference) for spec in catalog.models.values())


def progress_line(pull: Pull, progress: FetchProgress) -> Line:
    """Return how far the fetch is, as Ollama tells it."""
    pulling = f"pulling {pull.digest.removeprefix('sha256:')[:12]}"
    status = {VERIFYING: "verifying sha256 digest", JOINING: "joining parts"}.get(progress.phase, pulling)
    total = {} if progress.total_bytes is None else {"total": progress.total_bytes}
    return {"status": status, "digest": pull.digest, **total, "completed": progress.done_bytes}


def last_lines(pull: Pull) -> list[Line]:
    """Return what is told when the file is here: how to have it served, if it is not, and that all went well."""
    if pull.is_served or not isinstance(pull.reference, HubReference):
        return [{"status": "success"}]
    name = pull.reference.repo.lower().removesuffix("-gguf")
    advice = (
        "the file is here but not served: write these lines into models.yaml, below `models:`",
        f"  {name}:",
        f"    model: {pull.reference}",
    )
    return [*({"status": text} for text in advice), {"status": "success"}]


async def post_pull(request: web.Request) -> web.StreamResponse:
    """Answer with lines until the file is here; with `stream: false` then. Raises: RouterError."""
    services, exchange = request.app[SERVICES], current_exchange()
    fields = await read_fields(request, services)
    if fields.get("stream") not in (None, True, False):
        raise BadRequest("'stream' must be true or false", param="stream")
    pull = find_pull(services.supervisor.catalog, named_in(fields))
    store = services.store
    if store is None:
        raise ModelUnavailable("this server has no store of model files")
    async with aclosing(_lines(services, store, pull)) as lines:
        if fields.get("stream") is False:
            told = [line async for line in lines]
            advice = [line["status"] for line in last_lines(pull)[:-1]]
            return json_response(dict(told[-1]) | ({"message": "\n".join(advice)} if advice else {}))
        async for line in lines:
            await exchange.reply.write(json.dumps(line).encode() + b"\n")
        return await exchange.reply.finish()


async def _lines(services: Services, store: ModelFiles, pull: Pull) -> AsyncGenerator[Line, None]:
    """Yield every line of a pull that succeeds. Raises: ModelUnavailable with the reason why it does not."""
    yield {"status": "pulling manifest"}
    latest = _Latest()
    fetch = asyncio.create_task(store.fetch(pull.reference, pull.base_dir, latest.put), name="pull")
    fetch.add_done_callback(lambda _: latest.changed.set())
    try:
        while not fetch.done():
            await latest.changed.wait()
            if (progress := latest.take()) is not None:
                yield progress_line(pull, progress)
        fetch.result()
    except SourceError as error:
        if error.details:
            logger.warning("pull of %s failed: %s", pull.reference.short(), error.details)
        raise ModelUnavailable(error.message) from None
    finally:
        fetch.cancel()  # the store goes on with it
    services.supervisor.look_at_files()
    for line in last_lines(pull):
        yield line


class _Latest:
    """The last report of a fetch: a slow client misses some, and none waits for it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._progress: FetchProgress | None = None

    def put(self, progress: FetchProgress) -> None:
        """Something is new."""
        self._progress = progress
        self.changed.set()

    def take(self) -> FetchProgress | None:
        """Return what has not been taken."""
        self.changed.clear()
        taken, self._progress = self._progress, None
        return taken


ROUTES = (Route("POST", "/api/pull", post_pull, scopes=(Scope.ADMIN,), dialect=Dialect.OLLAMA),)
