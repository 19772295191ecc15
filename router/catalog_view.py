"""A catalogue as one API key may use it: the models and aliases that its `models` name, and nothing of the others.

Owns what a restricted key is told of names: what it may not use is answered like what does not exist. Must not know
keys or scopes: it is given names.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from router.catalog import AliasSpec, Catalog, ModelSpec, Resolution
from router.folder_names import without_folders
from router.missing_names import nearest_names, no_model_named, no_model_said
from router.name_patterns import WILDCARD, NameSet

_name_set = functools.lru_cache(maxsize=256)(NameSet)


class CatalogView:
    """What of a catalogue may be used under some names; made for one request or one look.

    The name of a model opens it under all of its aliases; the name of an alias opens that alias alone, so that its
    rules cannot be avoided.
    """

    def __init__(self, catalog: Catalog, names: tuple[str, ...] = (), *, tells_folders: bool = True) -> None:
        """`names` of models and aliases, or patterns of them; () = everything. `tells_folders` in which files lie."""
        self.catalog = catalog
        self._tells_folders = tells_folders
        self._own = names
        self._names = _name_set(names) if names else None
        self._models: Mapping[str, ModelSpec] | None = None

    @property
    def is_whole(self) -> bool:
        """True when nothing of the catalogue is left out."""
        return self._names is None

    @property
    def tells_all(self) -> bool:
        """True when sentences are told as they are."""
        return self.is_whole and self._tells_folders

    @property
    def models(self) -> Mapping[str, ModelSpec]:
        """The models that may be used under any name."""
        if self._models is None:
            self._models = self.catalog.models if self._names is None else self._usable()
        return self._models

    def _usable(self) -> dict[str, ModelSpec]:
        models, named = self.catalog.models, self._named()
        return {name: spec for name, spec in models.items() if name in named or self._opens_some(spec)}

    def shows(self, name: str) -> bool:
        """Whether the model of this name may be used under any name."""
        if self._names is None or self._models is not None:
            return name in self.models
        spec = self.catalog.models.get(name)
        return spec is not None and (self._opens_some(spec) or name in self._named())

    def _opens_some(self, spec: ModelSpec) -> bool:
        return self.opens(spec) or bool(self.aliases_of(spec))

    def _named(self) -> set[str]:
        """Return the models that are named outright, under names too that fit an alias with a `*`."""
        found = (self.catalog.find(name) for name in self._own if WILDCARD not in name)
        return {one.spec.name for one in found if one is not None}

    @property
    def default_model(self) -> str | None:
        """Whom requests mean that name no model; None = nobody, or one that may not be used."""
        default = self.catalog.default_model
        return default if default is not None and self.find(default) is not None else None

    def resolve(self, name: str | None) -> Resolution:
        """Return what `name` stands for; without one the default, or the only one that may be used.

        Raises: ModelNotFound, with the same words for what does not exist and for what may not be used; BadRequest.
        """
        if self._names is None:
            return self.catalog.resolve(name)
        chosen = name or self.default_model or self._only_name()
        if not chosen:
            raise no_model_said(self.listed_names())
        if (found := self.find(chosen)) is not None:
            return found
        raise no_model_named(chosen, self.listed_names(), may_add=False)

    def find(self, name: str) -> Resolution | None:
        """Return what `name` stands for; None = nothing, or what may not be used."""
        found = self.catalog.find(name)
        if found is None or self.opens(found.spec) or (found.alias is not None and self._has(found.alias.name)):
            return found
        return None

    def opens(self, spec: ModelSpec) -> bool:
        """Whether the model may be used under each of its names."""
        return self._has(spec.name)

    def aliases_of(self, spec: ModelSpec) -> list[AliasSpec]:
        """Return those of the model's aliases that may be used."""
        is_open = self.opens(spec)
        return [alias for alias in spec.aliases.values() if is_open or self._has(alias.name)]

    def name_of(self, spec: ModelSpec) -> str:
        """Return the name under which the model is shown: its own, or the first other one if only such may be used."""
        if self.opens(spec):
            return spec.name
        aliases = [alias.name for alias in self.aliases_of(spec)]
        names = [name for name in (*aliases, *self._own) if WILDCARD not in name]
        return next((name for name in names if (found := self.find(name)) and found.spec is spec), spec.name)

    def listed_names(self) -> list[str]:
        """Return every name that may be told."""
        return [name for name in self.catalog.listed_names() if self.find(name) is not None]

    def nearest_names(self, name: str) -> list[str]:
        """Return a few of them that look like `name`, best first."""
        return nearest_names(name, self.listed_names())

    def without_strangers(self, text: str) -> str:
        """Return a sentence in which the models that may not be used have no name, and files no folder if so wanted."""
        if not self._tells_folders:
            text = without_folders(text)
        if self._names is None:
            return text
        for name in self.catalog.models.keys() - self.models.keys():
            for quote in "'`":
                text = text.replace(f"{quote}{name}{quote}", "another model")
        return text

    def _has(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _only_name(self) -> str | None:
        names = [name for name in self.models if self._has(name)]
        names = names or [alias.name for spec in self.models.values() for alias in self.aliases_of(spec)]
        concrete = [name for name in names or self._own if WILDCARD not in name]
        return concrete[0] if len(concrete) == 1 else None


def unmatched(catalog: Catalog, names: Sequence[str]) -> list[int]:
    """Return the places of those among `names` that open nothing in the catalogue."""
    return [place for place, name in enumerate(names) if not CatalogView(catalog, (name,)).models]
