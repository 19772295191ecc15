"""Which model a request means that names none.

Reads snapshots only: it must never wake a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.capabilities import capabilities
from router.catalog import Resolution
from router.catalog_view import CatalogView
from router.lifecycle import WorkerState
from router.listing import Look

if TYPE_CHECKING:
    from router.supervisor import Supervisor

ANY = "any"
"""Stands for a capability that every model has."""


def find_candidate(supervisor: Supervisor, usable: CatalogView, name: str | None, capability: str | None) -> Resolution:
    """Return what `name` stands for; without one: the default, the only model here, or the only loaded one that can.

    `capability` is what it must be able to do, as `GET /v1/models` tells it; None = loaded ones do not count.
    Raises: ModelNotFound; BadRequest naming `model` when there is no such candidate.
    """
    if not name and capability is not None:
        name = find_unnamed(supervisor, usable, capability)
    return usable.resolve(name)


def find_unnamed(supervisor: Supervisor, usable: CatalogView, capability: str = ANY) -> str | None:
    """Return the model that a request without a name means; None = it must name one."""
    return usable.default_model or _only_candidate(supervisor, usable, capability)


def _only_candidate(supervisor: Supervisor, usable: CatalogView, capability: str) -> str | None:
    """Return the only model that runs here, or the only loaded one that can do this; None = there is no such one."""
    local = [spec.name for spec in usable.models.values() if spec.remote is None and usable.opens(spec)]
    found = local if len(local) == 1 else [name for name in _loaded_models(supervisor, capability) if name in local]
    return found[0] if len(found) == 1 else None


def _loaded_models(supervisor: Supervisor, capability: str) -> list[str]:
    """Return the names of the models that are ready and have told that they can do this."""
    look = Look.at(supervisor)
    return [
        view.name
        for view in look.fleet.models.values()
        if view.state is WorkerState.READY
        and (
            capability == ANY
            or any(
                status.facts is not None and capability in capabilities(status.facts)
                for _, status in look.statuses(view)
            )
        )
    ]
