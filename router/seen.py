"""Which models the sender of the current request may use, and which it may watch.

Owns the way from the request's key to its view of the catalogue. Must not keep one: edits hold for the next request.
"""

from __future__ import annotations

from router.catalog_view import CatalogView
from router.services import Services, current_exchange


def usable_models(services: Services) -> CatalogView:
    """Return the models that may be asked, and the names under which."""
    grant = current_exchange().grant
    return CatalogView(services.supervisor.catalog, grant.usable, tells_folders=grant.tells_folders)


def visible_models(services: Services) -> CatalogView:
    """Return the models whose state may be watched: all of them for those who see the metrics."""
    grant = current_exchange().grant
    return CatalogView(services.supervisor.catalog, grant.visible, tells_folders=grant.tells_folders)
