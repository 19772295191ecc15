"""llama-server's `POST /slots/{id}?action=…`: what may be done with a model's slots, told without waking a worker.

Owns which of these requests need a worker. What is in a slot, and whose it is, workers know alone.
"""

from __future__ import annotations

import functools

import orjson
from aiohttp import web

from router.api import run_model
from router.dialects import Dialect
from router.errors import BadRequest, BodyTooLarge, NotAvailableYet
from router.lifecycle import WorkerState
from router.relay import Call
from router.routes import Route, Running, Streaming
from router.services import SERVICES, Services

_ACTIONS = ("save", "restore", "erase")
_MAX_SLOT = 2**31 - 1
_MAX_ORDER_BYTES = 64 * 1024
"""An order names a file at most; it is read while others wait."""


async def post_slot(request: web.Request) -> web.StreamResponse:
    """Save, restore or erase what the sender has last had computed in a slot. Raises: RouterError, ClientGone."""
    action = request.query.get("action", "")
    if action not in _ACTIONS:
        raise BadRequest("'action' must be save, restore or erase: POST /slots/0?action=save", param="action")
    digits = request.match_info["id"].lstrip("0") or "0"
    slot_id = int(digits[:20])
    if slot_id > _MAX_SLOT:
        raise BadRequest(f"Invalid slot ID: there is no slot {digits[:20]}", param="id_slot")
    order = functools.partial(_order, request.app[SERVICES], slot_id, action)
    return await run_model(request, revise=order)


def _order(services: Services, slot_id: int, action: str, call: Call) -> None:
    """The call asks a worker for the action alone, whatever else its body says. Raises: RouterError."""
    spec = call.spec
    if len(call.body) > _MAX_ORDER_BYTES:
        raise BodyTooLarge(
            f"the body of this request may have {_MAX_ORDER_BYTES} bytes: it names a file, as in "
            f'{{"filename": "chat"}}, and nothing else of it is looked at'
        )
    if action != "erase" and not spec.engine.get("prompt_cache_disk_bytes"):
        raise NotAvailableYet(
            f"nothing of `{spec.name}` is kept on the disk, so its slots cannot be saved or restored: set its "
            f"`prompt_cache_disk_bytes` in models.yaml; without it finished prompts are kept in memory and found by "
            f"themselves, whatever slot they ran in",
        )
    if spec.replicas > 1:
        raise BadRequest(
            f"`{spec.name}` may run in {spec.replicas} workers (`replicas`), and the number of a slot does not tell in "
            f"which: finished prompts are found by themselves there",
            code="unsupported_by_model",
            param="model",
        )
    view = services.supervisor.snapshot().models.get(spec.name)
    if action != "restore" and (view is None or view.state is not WorkerState.READY):
        raise BadRequest(f"`{spec.name}` is not loaded: there is nothing in its slots to {action}", param="model")
    wanted = {"id_slot": slot_id, "action": action, "filename": orjson.loads(call.body).get("filename")}
    call.body = orjson.dumps(wanted)


ROUTES = (
    Route(
        "POST",
        "/slots/{id:[0-9]+}",
        post_slot,
        is_counted=True,
        dialect=Dialect.LLAMA,
        runs=Running(Streaming.NEVER, takes_loras=False, capability="completion", may_be_empty=True),
    ),
)
