"""Names of models as Ollama's clients write them: with a tag, `latest` where they mean none.

Owns which model such a name means, and how names are shown to these clients. Pure.
"""

from __future__ import annotations

from router.catalog import Catalog, Resolution
from router.catalog_view import CatalogView
from router.errors import ModelNotFound
from router.missing_names import HOW_TO_ALIAS

LATEST = ":latest"


def find_tagged(catalog: Catalog | CatalogView, name: str | None) -> Resolution:
    """Return what `name` stands for: exactly it if there is such a model, else it with or without `:latest`.

    Aliases with a `*` come last. Raises: ModelNotFound in Ollama's words and with the nearest names; BadRequest when
    the request must name a model.
    """
    if not name:
        return catalog.resolve(None)
    if (found := find_exact(catalog, name)) is not None:
        return found
    try:
        return catalog.resolve(name)
    except ModelNotFound:
        how = "" if isinstance(catalog, CatalogView) and not catalog.is_whole else f". {HOW_TO_ALIAS}"
        raise ModelNotFound(f"{not_found(catalog, name)}{how}", param="model") from None


def find_exact(catalog: Catalog | CatalogView, name: str) -> Resolution | None:
    """Return what is called so, with or without `:latest`; None = nothing is, though an alias with a `*` may fit."""
    other = name.removesuffix(LATEST) if name.endswith(LATEST) else name + LATEST
    for candidate in filter(None, (name, other)):
        try:
            found = catalog.resolve(candidate)
        except ModelNotFound:
            continue
        if found.alias is None or candidate in found.spec.aliases:
            return found
    return None


def not_found(catalog: Catalog | CatalogView, name: str) -> ModelNotFound:
    """Return the error that Ollama's clients know by its words."""
    nearest = catalog.nearest_names(name.removesuffix(LATEST))
    shown = name if len(name) <= 80 else name[:80] + "…"
    hint = f"did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
    return ModelNotFound(f"model '{shown}' not found; {hint}GET /api/tags lists all models", param="model")


def tagged(name: str) -> str:
    """Return the name with a tag, which Ollama's clients expect in lists."""
    return name if ":" in name else name + LATEST
