"""llama-swap's configuration: models with command lines of llama-server, macros, groups, peers.

Owns what its keys mean here. Its commands are read, never run. Pure.

Source: llama-swap's docs/configuration.md and config.example.yaml.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

import yaml

from router.catalog_inner_keys import ROUTER_OWNED
from router.catalog_keys import REMOTE_KEYS
from router.importing.flag_names import canonical
from router.importing.flags import apply_options, read_words
from router.importing.imported import Imported, ImportedModel, NotImportable
from router.importing.special_flags import SECRETIVE, USER

_MACRO = re.compile(r"\$\{([^}]+)\}")
_MAX_DEPTH = 20
_PROGRAMS: Final = ("llama-server", "llama-server.exe", "llama_server")
_CONTAINERS: Final = ("docker", "podman")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEVICE_VARIABLES: Final = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"})

_TOP_IGNORED: Final[Mapping[str, str]] = {
    "healthCheckTimeout": "",
    "startPort": "",
    "includeAliasesInList": "",
    "sendLoadingState": "",
    "$schema": "",
    "macros": "",
    "models": "",
    "logLevel": "start the server with `--log-level`",
    "logTimeFormat": "",
    "logToStdout": "",
    "metricsMaxInMemory": "",
    "captureBuffer": "",
    "performance": "",
    "proxy": "",
}
_MODEL_IGNORED: Final = frozenset(
    {"cmd", "cmdStop", "checkEndpoint", "proxy", "macros", "sendLoadingState", "timeouts"}
)

Macros = Mapping[str, str]


def read_llama_swap(text: str) -> Imported:
    """Return the configuration in our words. Raises: NotImportable."""
    root = _parsed(text)
    if _is_ours(root):
        raise NotImportable("it is a models.yaml of Corral's already; `corral check` and `corral serve` take it")
    models = root.get("models")
    if not isinstance(models, Mapping) and not isinstance(root.get("peers"), Mapping):
        raise NotImportable("it has no map `models:`, so it is no configuration of llama-swap's")
    imported = Imported("llama-swap's configuration")
    macros = _macros(root.get("macros"))
    ttl = _whole(root.get("globalTTL"))
    # llama-swap unloads a model for another one only, unless a ttl is set.
    imported.top["defaults"] = {"idle_unload_s": ttl if ttl is not None and ttl > 0 else 0}
    if (timeout := _whole(root.get("healthCheckTimeout"))) is not None and timeout > 0:
        imported.top["defaults"]["load_timeout_s"] = timeout
    if models is not None and not isinstance(models, Mapping):
        imported.note("models: is no map, and was left out")
    for name, raw in (models if isinstance(models, Mapping) else {}).items():
        if isinstance(raw, Mapping):
            imported.models.append(_Reader(str(name), raw, macros).read())
        else:
            imported.note(f"models.{name}: is no map, and was left out")
    imported.models += _peers(root.get("peers"))
    _top(imported, root)
    return imported


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        root = yaml.safe_load(text)
    # A tag's or a date's text may be none: the parser ends with whatever it stumbles over.
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotImportable(_no_yaml(error)) from None
    except RecursionError:
        raise NotImportable("it is nested too deeply") from None
    if not isinstance(root, Mapping):
        raise NotImportable("it is no map")
    return root


def _no_yaml(error: Exception) -> str:
    """Return where the text is no YAML, and what the parser stumbles over."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return f"it is no valid YAML{where}: {problem}"


def _is_ours(root: Mapping[str, Any]) -> bool:
    """Return whether it is a models.yaml: a model is a reference, or has options that only Corral has."""
    models = root.get("models")
    if not isinstance(models, Mapping) or not models:
        return False
    return all(
        isinstance(one, str) or (isinstance(one, Mapping) and "cmd" not in one and not {"model", "url"}.isdisjoint(one))
        for one in models.values()
    )


# --- macros ------------------------------------------------------------------------------------------------


def _macros(raw: Any) -> dict[str, str]:
    """Return macros by name; llama-swap takes a map, or a list of maps with one entry each."""
    if isinstance(raw, Mapping):
        return {str(name): _text(value) for name, value in raw.items()}
    if isinstance(raw, list):
        return {str(name): _text(value) for one in raw if isinstance(one, Mapping) for name, value in one.items()}
    return {}


def expand(text: str, macros: Macros) -> str:
    """Return `text` with macros put in; `${PORT}`, `${env.NAME}` and what nobody has defined stay."""
    for _ in range(_MAX_DEPTH):
        expanded = _MACRO.sub(lambda match: macros.get(match[1], match[0]), text)
        if expanded == text or len(expanded) > 2**16:
            return expanded[: 2**16]
        text = expanded
    return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- one model ---------------------------------------------------------------------------------------------


class _Reader:
    """One entry of `models:`."""

    def __init__(self, name: str, raw: Mapping[str, Any], macros: Macros) -> None:
        self._raw = raw
        self._macros = {**macros, "MODEL_ID": name, **_macros(raw.get("macros"))}
        readable = re.sub(r"\s+", "-", name)
        self._model = ImportedModel(readable)
        if readable != name:
            self._model.note(f"its name was {name!r}; names have no spaces here")

    def read(self) -> ImportedModel:
        model, raw = self._model, self._raw
        self._command(self._variables(_list(raw.get("env"))))
        self._names()
        self._filters()
        if (ttl := _whole(raw.get("ttl"))) is not None and ttl >= 0:
            model.options["idle_unload_s"] = ttl
        if (limit := _whole(raw.get("concurrencyLimit"))) is not None and limit > 0:
            model.note(f"concurrencyLimit {limit}: requests beyond `slots` wait here instead of being refused")
        if raw.get("useModelName"):
            model.note("useModelName: every model here is asked for by its own name or an alias")
        if raw.get("metadata"):
            model.note("metadata: not carried over; `tags` and `description` are shown to clients")
        if raw.get("timeouts"):
            model.note("timeouts: see `request_timeout_s`, `queue_timeout_s` and `load_timeout_s`")
        known = {
            *_MODEL_IGNORED,
            *("env", "aliases", "unlisted", "name", "description", "filters", "ttl", "concurrencyLimit"),
            *("useModelName", "metadata"),
        }
        for key in raw:
            if key not in known:
                model.note(f"{key}: not known here")
        if "url" in model.options:
            foreign = [key for key in model.options if key not in REMOTE_KEYS]
            for key in foreign:
                del model.options[key]
            if foreign:
                model.note(f"{', '.join(foreign)}: that other server's own business")
        return model

    def _expanded(self, value: Any) -> str:
        return expand(_text(value), self._macros)

    def _command(self, pairs: list[tuple[str, str | None]]) -> None:
        """Take the command line over, behind options that the environment sets: `pairs`."""
        model, command = self._model, self._raw.get("cmd")
        if not command:
            proxy = self._raw.get("proxy")
            if proxy:
                _set_address(model, self._expanded(proxy))
            else:
                model.note("it has no `cmd`")
            return
        lines = [line for line in self._expanded(command).splitlines() if not line.lstrip().startswith("#")]
        text = " ".join(line.rstrip("\\") for line in lines)
        try:
            words = shlex.split(text)
        except ValueError as error:
            model.note(f"cmd cannot be read: {error}")
            return
        # Not the variables before it: one may hold a secret.
        first = next((PurePath(word).name for word in words if not _ASSIGNMENT.match(word)), "")
        at = _program(words)
        if at is None:
            model.note(
                f"cmd runs `{first}`, which is not llama-server: keep that server, and write its address as `url`"
            )
            return
        if first in _CONTAINERS:
            model.note(f"cmd runs in a container ({first}): paths in it are the container's, correct them")
        else:
            pairs = [*pairs, *self._variables(word for word in words[:at] if _ASSIGNMENT.match(word))]
        given, others = read_words(words[at + 1 :])
        apply_options(model, [*pairs, *given])
        for word in others:
            model.note(f"cmd: {word!r} is no option, and was left out")
        unknown = sorted({match[1] for match in _MACRO.finditer(text)} - {"PORT"})
        if unknown:
            model.note(f"{', '.join(f'${{{name}}}' for name in unknown)}: put in what it stands for")
        if not model.is_usable:
            model.note("its cmd names no model file that can be taken over")

    def _variables(self, entries: Iterable[Any]) -> list[tuple[str, str | None]]:
        """Take variables of the environment over; return those that are options of llama-server."""
        options: list[tuple[str, str | None]] = []
        pairs = (str(entry).partition("=") for entry in entries)
        found = {name.strip(): self._expanded(value) for name, _, value in pairs}
        for name, value in found.items():
            if not _VARIABLE.fullmatch(name):
                self._model.note(f"env {name}: is no name of a variable")
                continue
            if name.startswith("LLAMA_ARG_"):
                options.append((canonical(name), value))
                continue
            if SECRETIVE.search(name):
                self._model.note(f"env {name}: not copied, because it looks like a secret")
                continue
            if name in _DEVICE_VARIABLES:
                self._model.note(
                    f"env {name}={value}: Corral places models itself; bind this one with `device:` and a name that "
                    "`corral devices` shows, if it must be"
                )
                continue
            self._model.options.setdefault("env", {})[name] = value
        return options

    def _names(self) -> None:
        raw, model = self._raw, self._model
        aliases = raw.get("aliases")
        model.add_aliases({re.sub(r"\s+", "-", str(name)): None for name in _list(aliases)})
        if raw.get("unlisted"):
            model.note("unlisted: models are always listed here; an alias with `listed: false` is not")
        described = [self._expanded(raw[key]).strip() for key in ("name", "description") if raw.get(key)]
        if described:
            model.options["description"] = ": ".join(described)

    def _filters(self) -> None:
        filters = self._raw.get("filters")
        if not isinstance(filters, Mapping):
            return
        strip = filters.get("stripParams") or filters.get("strip_params")
        names = [name.strip() for name in str(strip or "").split(",") if name.strip()]
        dropped = self._allowed("stripParams", names)
        if dropped:
            self._model.options.setdefault("request", {})["drop"] = dropped
        for name, value in self._rules("setParams", filters.get("setParams")):
            self._model.set_request("force", name, value)
        by_id = filters.get("setParamsByID")
        for alias, raw in by_id.items() if isinstance(by_id, Mapping) else ():
            force = dict(self._rules("setParamsByID", raw))
            name = re.sub(r"\s+", "-", self._expanded(alias))
            if name == self._model.name:
                self._model.note(
                    f"setParamsByID: {', '.join(force)} held for the model's own name alone; `request: {{force: …}}` "
                    "holds for its aliases too"
                )
            elif force:
                self._model.add_aliases({name: {"request": {"force": force}}})
        for key in filters:
            if key not in ("stripParams", "strip_params", "setParams", "setParamsByID"):
                self._model.note(f"filters.{key}: not known here")

    def _rules(self, key: str, raw: Any) -> Iterator[tuple[str, Any]]:
        """Yield what requests are to have, as far as a rule may name it."""
        if isinstance(raw, Mapping):
            given = {str(name): value for name, value in raw.items()}
            yield from ((name, given[name]) for name in self._allowed(key, list(given)))

    def _allowed(self, key: str, names: Sequence[str]) -> list[str]:
        # llama-swap itself lets no filter touch `model`.
        if owned := [name for name in names if name in ROUTER_OWNED and name != "model"]:
            self._model.note(
                f"filters.{key}: {', '.join(owned)} is read before any rule applies here, and was left out"
            )
        return [name for name in names if name not in ROUTER_OWNED]


def _program(words: Sequence[str]) -> int | None:
    """Return where llama-server's name stands in a command, or its image's; None = the command runs something else."""
    names = [PurePath(word).name for word in words]
    found = next((at for at, name in enumerate(names) if name in _PROGRAMS), None)
    if found is None and names[:1] == ["server"]:  # as it was called once
        return 0
    if found is None and names[:1] and names[0] in _CONTAINERS:
        return next((at for at, word in enumerate(words) if "llama" in word and not word.startswith("-")), None)
    return found


# --- the rest of the file ----------------------------------------------------------------------------------


def _top(imported: Imported, root: Mapping[str, Any]) -> None:
    by_name = {model.name: model for model in imported.models}
    hooks = root.get("hooks")
    startup = hooks.get("on_startup") if isinstance(hooks, Mapping) else None
    for name in _list(startup.get("preload")) if isinstance(startup, Mapping) else ():
        if (model := by_name.get(re.sub(r"\s+", "-", str(name)))) is not None and "url" not in model.options:
            model.options["preload"] = True
    groups = root.get("groups")
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        _group(imported, str(name), group if isinstance(group, Mapping) else {}, by_name)
    if not isinstance(groups, Mapping) and "matrix" not in root:
        imported.note(
            "llama-swap kept one model at a time; here as many are loaded as the memory holds. For one at a time: "
            "`limits: {max_loaded: 1}`"
        )
    if "matrix" in root:
        imported.note("matrix: models are kept and unloaded by the memory that they need; `pin` keeps one for ever")
    if root.get("apiKeys"):
        imported.note("apiKeys: not copied, because they are secrets; put them into CORRAL_API_KEYS, or see `keys:`")
    for key, advice in _TOP_IGNORED.items():
        if advice and key in root:
            imported.note(f"{key}: {advice}")
    known = {*_TOP_IGNORED, "globalTTL", "hooks", "groups", "matrix", "apiKeys", "peers"}
    for key in root:
        if key not in known:
            imported.note(f"{key}: not known here")


def _group(imported: Imported, name: str, group: Mapping[str, Any], by_name: Mapping[str, ImportedModel]) -> None:
    members = [str(member) for member in _list(group.get("members"))]
    if group.get("persistent") is True:
        for member in members:
            if (model := by_name.get(re.sub(r"\s+", "-", member))) is not None and "url" not in model.options:
                model.options["pin"] = True
        return
    if group.get("swap") is not False and len(members) > 1:
        imported.note(
            f"groups.{name}: one of {', '.join(members)} was loaded at a time; here as many are as the memory holds"
        )


def _peers(raw: Any) -> list[ImportedModel]:
    models = []
    for peer, entry in raw.items() if isinstance(raw, Mapping) else ():
        if not isinstance(entry, Mapping) or not entry.get("proxy"):
            continue
        for name in _list(entry.get("models")):
            model = ImportedModel(re.sub(r"\s+", "-", str(name)))
            _set_address(model, str(entry["proxy"]))
            if model.name != name:
                model.options["url_model"] = str(name)
            if entry.get("apiKey"):
                _peer_key(model, str(peer), str(entry["apiKey"]))
            models.append(model)
    return models


def _peer_key(model: ImportedModel, peer: str, key: str) -> None:
    variable = re.fullmatch(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}", key)
    name = variable[1] if variable is not None else f"{re.sub(r'[^A-Z0-9]', '_', peer.upper())}_API_KEY"
    model.options["url_key_env"] = name if _VARIABLE.fullmatch(name) else f"PEER_{name}"
    if variable is None:
        model.note(f"its key was not copied, because it is a secret: put it into the variable {name}")


def _set_address(model: ImportedModel, proxy: str) -> None:
    """The model is answered for by the server at `proxy`."""
    address = USER.sub(r"\1", proxy.rstrip("/"))
    if address != proxy.rstrip("/"):
        model.note("the user and password in its address were not copied; a key stands in `url_key_env`'s variable")
    model.options["url"] = address if address.endswith("/v1") else f"{address}/v1"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
