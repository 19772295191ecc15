"""The text of a `models.yaml` -> a `Catalog`, or every problem that it has, each with its place.

Owns the top level of the file and names that are used twice. Must not touch the disk or the environment:
`catalog_files.py` reads the file, and the template files that are only paths here.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from router.api_keys import KeyLimits, KeySpec
from router.catalog import MAX_NAME_LENGTH, AliasSpec, Catalog, DeviceSpec, Limits, ModelSpec
from router.catalog_keys import MODEL_KEYS, NOT_IN_DEFAULTS
from router.catalog_models import build_spec, canonical, check_remote, merge
from router.catalog_problems import Problem
from router.catalog_refusals import (
    MODEL_SYNONYMS,
    PLAIN_SECRET,
    explain_api_key_key,
    explain_device_key,
    explain_limit_key,
    explain_model_key,
    explain_top_key,
)
from router.catalog_scalars import Findings, Found, Wrong, hidden_map, name_problem, read_whole, shown
from router.catalog_sections import API_KEY_KEYS, DEVICE_KEYS, LIMIT_KEYS, SPARES, TOP_KEYS
from router.catalog_values import FoundAlias, device_id, read_section
from router.device import CPU
from router.name_patterns import WILDCARD, NamePatterns
from router.references import PathReference, parse_reference
from router.yaml_lines import Place, YamlMap, YamlNode, YamlScalar, read_yaml

_DEFAULTS_KEYS = {name: key for name, key in MODEL_KEYS.items() if name not in NOT_IN_DEFAULTS}
_KEY_LIMITS = tuple(limit.name for limit in fields(KeyLimits))

_MAX_NAMES = 20
"""So many names a message may list."""


@dataclass(frozen=True, slots=True)
class CatalogReading:
    """What could be understood, problems or not, and where the parts stand that must still be looked up on the disk."""

    catalog: Catalog
    problems: tuple[Problem, ...]
    options: Mapping[str, Mapping[str, Found]] = field(default_factory=dict)
    """By model, its options, its own or those of `defaults`; of `loras`, each adapter at the place of its reference."""
    keys: Mapping[str, Place] = field(default_factory=dict)
    """Where each API key stands, by id."""


def read_catalog(text: str, path: Path) -> CatalogReading:
    """Return all that `text` says and all that is wrong with it. Never raises."""
    document = read_yaml(text)
    findings = Findings(path.parent)
    for problem in document.problems:
        findings.add(problem.where, problem.place, problem.message)
    if isinstance(document.root, YamlMap):
        return _Reader(path, findings).read(document.root)
    if document.root is None or (isinstance(document.root, YamlScalar) and document.root.value is None):
        if not findings.problems:
            findings.add("", Place(1, 1), "the file is empty; it must have a `models:` map")
    else:
        findings.add(
            "", document.root.place, f"the file must be a map with a `models:` key, not {shown(document.root)}"
        )
    return CatalogReading(Catalog({}, path=path), findings.problems)


class _Reader:
    """Reads one file; what is wrong goes to `findings`, what is usable into the catalogue."""

    def __init__(self, path: Path, findings: Findings) -> None:
        self._path = path
        self._findings = findings
        self._options: dict[str, dict[str, Found]] = {}
        self._names: dict[str, tuple[str, Place]] = {}

    def read(self, root: YamlMap) -> CatalogReading:
        """Return the reading of the whole file."""
        for key, entry in root.entries.items():
            if key not in TOP_KEYS:
                has_model = isinstance(entry.value, YamlMap) and bool({"model", "url"} & entry.value.entries.keys())
                known_elsewhere = key in LIMIT_KEYS or key in MODEL_KEYS
                message = explain_top_key(key, looks_like_model=has_model and not known_elsewhere)
                self._findings.add(key, entry.place, message)
        limits = self._limits(root)
        defaults = self._defaults(root)
        models = self._models(root, defaults, limits)
        keys = self._keys(root)
        devices = self._devices(root)
        default_model, spares = self._default_model(root), self._spares(root)
        problems = sorted(self._findings.problems, key=lambda p: (p.line or 0, p.column or 0))
        return CatalogReading(
            Catalog(models, limits, keys, default_model, self._path, devices, spares),
            tuple(problems),
            self._options,
            {key.id: root.entries["keys"].value.entries[key.id].place for key in keys},  # type: ignore[union-attr]
        )

    def _section(self, root: YamlMap, key: str, example: str) -> YamlMap | None:
        """Return the map under a top-level key; None if it is absent, empty or no map."""
        entry = root.entries.get(key)
        if entry is None:
            return None
        if isinstance(entry.value, YamlMap):
            return entry.value
        if isinstance(entry.value, YamlScalar) and entry.value.value is None:
            or_not = "" if key == "models" else ", or remove the key"
            self._findings.add(key, entry.place, f"is empty; write {example} below it, indented{or_not}")
        else:
            self._findings.add(key, entry.value.place, f"must be a map such as {example}, not {shown(entry.value)}")
        return None

    def _limits(self, root: YamlMap) -> Limits:
        section = self._section(root, "limits", "`max_loaded: 2`")
        if section is None:
            return Limits()
        found = read_section(section, "limits", LIMIT_KEYS, lambda key, _: explain_limit_key(key), self._findings)
        return Limits(**{name: entry.value for name, entry in found.items()})

    def _defaults(self, root: YamlMap) -> dict[str, Found]:
        section = self._section(root, "defaults", "`slots: 4`")
        if section is None:
            return {}

        def explain(key: str, value: str | None) -> str:
            return explain_model_key(key, value, section="defaults")

        return canonical(read_section(section, "defaults", _DEFAULTS_KEYS, explain, self._findings), self._findings)

    # --- models -------------------------------------------------------------------------------------------

    def _models(self, root: YamlMap, defaults: Mapping[str, Found], limits: Limits) -> dict[str, ModelSpec]:
        example = "`NAME: {model: FILE.gguf}`"
        if "models" not in root.entries:
            self._findings.add("models", root.place, f"is missing; write `models:` and below it {example}")
            return {}
        section = self._section(root, "models", example)
        if section is None:
            return {}
        if not section.entries:
            self._findings.add("models", section.place, f"is empty; write at least one model: {example}")
        for name, entry in section.entries.items():  # all names first, so that an alias is the one that is wrong
            if (message := name_problem(name)) is not None:
                self._findings.add(f"models.{name}", entry.place, message)
            else:
                self._names[name] = (f"models.{name}", entry.place)
        models: dict[str, ModelSpec] = {}
        for name, entry in section.entries.items():
            spec = self._model(name, entry.value, entry.place, defaults, limits)
            if spec is not None:
                models[name] = spec
        return models

    def _model(
        self, name: str, node: YamlNode, place: Place, defaults: Mapping[str, Found], limits: Limits
    ) -> ModelSpec | None:
        where = f"models.{name}"
        if isinstance(node, YamlScalar) and isinstance(node.value, str):
            own = self._short_form(where, node)
        elif isinstance(node, YamlMap):
            own = canonical(read_section(node, where, MODEL_KEYS, explain_model_key, self._findings), self._findings)
            if {"model", "url"} <= node.entries.keys():
                message = "a model is either a file (`model`) or on another server (`url`): keep one of the two"
                self._findings.add(f"{where}.url", node.entries["url"].place, message)
                return None
            if not ({"model", "url"} | MODEL_SYNONYMS) & node.entries.keys():
                self._findings.add(
                    f"{where}.model", place, "is missing: write which GGUF file it is, `model: FILE.gguf`"
                )
            check_remote(own, self._findings)
        else:
            is_null = isinstance(node, YamlScalar) and node.value is None
            self._findings.add(
                where,
                place if is_null else node.place,
                f"must be a map of options or the model's reference, not {shown(node)}: write `{name}: FILE.gguf`"
                f" or `{name}: {{model: FILE.gguf}}`",
            )
            return None
        aliases = self._aliases(own)
        options = merge(defaults, own)
        for key in ("model", "draft_model"):
            if key in options and options[key].value is not None and not self._is_reference(options[key]):
                del options[key]
        self._options[name] = options
        source = options["model"].value if "model" in options else ""
        spec = build_spec(name, source, options, aliases, limits=limits, findings=self._findings)
        return spec if (source or spec.remote is not None) and name_problem(name) is None else None

    def _is_reference(self, found: Found) -> bool:
        """Whether the file is named in a form that is known. Mutates: `findings`, if it is not."""
        try:
            parse_reference(found.value)
        except ValueError as error:
            self._findings.add(found.where, found.place, str(error))
            return False
        return True

    def _short_form(self, where: str, node: YamlScalar) -> dict[str, Found]:
        """Return the options that `NAME: REFERENCE` stands for."""
        text = str(node.value)
        try:
            is_bare_word = isinstance(parse_reference(text), PathReference) and not text.lower().endswith(".gguf")
        except ValueError:
            is_bare_word = False  # reported with the reference's own message
        if is_bare_word:  # more likely the first half of a key than a file
            self._findings.add(
                where,
                node.place,
                f"{shown(node)} is not the name of a GGUF file; write `FILE.gguf`, or `model: FILE.gguf` below",
            )
            return {}
        return {"model": Found(text, where, node.place)}

    def _aliases(self, own: Mapping[str, Found]) -> dict[str, AliasSpec]:
        aliases: dict[str, AliasSpec] = {}
        entries: tuple[FoundAlias, ...] = own["aliases"].value if "aliases" in own else ()
        for entry in entries:
            alias = entry.alias
            if alias.name in self._names:
                first_where, first_place = self._names[alias.name]
                self._findings.add(
                    entry.where,
                    entry.place,
                    f"the name `{alias.name}` is already used by {first_where} on line {first_place.line};"
                    " each name may stand for one model only",
                )
            else:
                self._names[alias.name] = (entry.where, entry.place)
                aliases[alias.name] = replace(alias, lora=self._scales(entry.loras, own)) if entry.loras else alias
        return aliases

    def _scales(self, chosen: Sequence[Found], own: Mapping[str, Found]) -> dict[str, float]:
        """Return the scale of each adapter that an alias names. Mutates: `findings`, if the model lacks one."""
        known = {found.value.name: found.value for found in own["loras"].value} if "loras" in own else {}
        scales: dict[str, float] = {}
        for found in chosen:
            name, scale = found.value
            if name in known:
                scales[name] = known[name].scale if scale is None else scale
            elif "url" in own:
                message = "a model of another server has no adapters here: give them to the other server"
                self._findings.add(found.where, found.place, message)
            elif known:
                names = ", ".join(f"`{one}`" for one in itertools.islice(known, _MAX_NAMES)) + (
                    ", …" if len(known) > _MAX_NAMES else ""
                )
                self._findings.add(found.where, found.place, f"no adapter is named `{name[:80]}`; `loras` has {names}")
            else:
                self._findings.add(
                    found.where,
                    found.place,
                    f"the model has no adapters: write `loras: {{{name[:80]}: FILE.gguf}}` among its options",
                )
        return scales

    # --- the rest of the file -----------------------------------------------------------------------------

    def _devices(self, root: YamlMap) -> dict[str, DeviceSpec]:
        section = self._section(root, "devices", "`CUDA0: {headroom: 1GiB}`")
        devices: dict[str, DeviceSpec] = {}
        for name, entry in section.entries.items() if section is not None else ():
            where, id_ = f"devices.{name}", device_id(name)
            if (message := name_problem(name)) is not None:
                self._findings.add(where, entry.place, message)
            elif id_ in devices:
                self._findings.add(where, entry.place, f"the device `{id_}` is here twice: keep one")
            elif isinstance(entry.value, YamlMap):
                devices[id_] = self._device(id_, where, entry.value)
            else:
                message = f"must be a map such as `{{budget: 8GiB}}`, not {shown(entry.value)}"
                self._findings.add(where, entry.value.place, message)
        return devices

    def _device(self, id_: str, where: str, node: YamlMap) -> DeviceSpec:
        found = read_section(node, where, DEVICE_KEYS, lambda key, _: explain_device_key(key), self._findings)
        values = {name: entry.value for name, entry in found.items() if entry.value is not None}
        memory, kind = values.get("memory"), values.get("kind", "cpu" if id_ == CPU else "gpu")
        if "kind" in found and "memory" not in node.entries:
            message = "is only for a device that is declared with `memory`; one that is found says itself what it is"
            self._findings.add(found["kind"].where, node.entries["kind"].place, message)
        elif "kind" in found and (kind == "cpu") is not (id_ == CPU):
            message = f"the processor is the device `{CPU}`, and no other one is: change the name or the kind"
            self._findings.add(found["kind"].where, found["kind"].place, message)
        if memory is not None and values.get("headroom", 0) >= memory:
            message = "leaves nothing of the device's `memory`: make it smaller"
            self._findings.add(found["headroom"].where, found["headroom"].place, message)
        return DeviceSpec(id_, values.get("budget"), values.get("headroom"), values.get("prefer", 0), memory, kind)

    def _spares(self, root: YamlMap) -> int:
        entry = root.entries.get("spares")
        if entry is None:
            return 0
        try:
            return read_whole(SPARES, entry.value) or 0
        except Wrong as wrong:
            self._findings.add("spares", entry.value.place, wrong.message)
            return 0

    def _keys(self, root: YamlMap) -> tuple[KeySpec, ...]:
        entry = root.entries.get("keys")
        if entry is not None and not isinstance(entry.value, YamlMap):
            # never quoted: it may well be a secret
            message = f"must be a map such as `my-app: {{env: MY_APP_KEY}}`; {PLAIN_SECRET}"
            self._findings.add("keys", entry.value.place, message)
            return ()
        section = entry.value if entry is not None and isinstance(entry.value, YamlMap) else None
        keys = []
        for id_, item in section.entries.items() if section is not None else ():
            where = f"keys.{id_}"
            if (message_or_none := name_problem(id_)) is not None:
                self._findings.add(where, item.place, message_or_none)
            elif not isinstance(item.value, YamlMap):
                self._findings.add(where, item.value.place, PLAIN_SECRET)
            elif (key := self._key(id_, item.value, item.place)) is not None:
                keys.append(key)
        return tuple(keys)

    def _key(self, id_: str, node: YamlMap, place: Place) -> KeySpec | None:
        where = f"keys.{id_}"
        num_before = self._findings.count
        found = read_section(
            hidden_map(node), where, API_KEY_KEYS, lambda key, _: explain_api_key_key(key), self._findings
        )
        sources = [name for name in ("env", "file", "sha256") if name in node.entries]
        if len(sources) != 1 and self._findings.count == num_before:
            message = f"has {' and '.join(sources)}: keep one" if sources else "says nowhere where the key is"
            self._findings.add(where, place, f"{message}; write exactly one of `env`, `file` and `sha256`")
        if self._findings.count > num_before:
            return None
        values = {name: entry.value for name, entry in found.items()}
        scopes = frozenset(values.pop("scopes", KeySpec(id_).scopes))
        if "admin" in scopes and "models" in values:
            message = "does not hold for scope `admin`, which may do everything: take one of the two away"
            self._findings.add(found["models"].where, found["models"].place, message)
            return None
        limits = KeyLimits(**{name: values.pop(name) for name in _KEY_LIMITS if name in values})
        return KeySpec(id_, scopes=scopes, limits=limits, **values)

    def _default_model(self, root: YamlMap) -> str | None:
        entry = root.entries.get("default_model")
        if entry is None or (isinstance(entry.value, YamlScalar) and entry.value.value is None):
            return None
        node = entry.value
        if not isinstance(node, YamlScalar) or not isinstance(node.value, str):
            self._findings.add("default_model", node.place, f"must be the name of a model or alias, not {shown(node)}")
            return None
        if WILDCARD in node.value:
            message = "is a pattern; write a name that it stands for, or that of the model"
            self._findings.add("default_model", node.place, message)
            return None
        patterns = NamePatterns((name, name) for name in self._names if WILDCARD in name)
        if node.value not in self._names and patterns.find(node.value) is None:
            close = difflib.get_close_matches(node.value[:MAX_NAME_LENGTH], self._names, n=1)
            advice = f"; did you mean `{close[0]}`?" if close else ""
            self._findings.add("default_model", node.place, f"no model or alias is named `{node.value[:80]}`{advice}")
            return None
        return node.value
