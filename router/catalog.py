"""What is served: models, their aliases, limits and keys as plain data, and name -> model.

Owns the meaning of a name and of a model's options once they are read. Must not read text or files:
`catalog_parser.py` makes a `Catalog` from YAML, `catalog_files.py` from what lies on the disk.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.answer_limits import unforced, unsaid
from router.api_keys import KeySpec
from router.events import FleetLimits, ModelPolicy
from router.missing_names import nearest_names, no_model_named, no_model_said
from router.name_patterns import WILDCARD, NamePatterns
from worker.contract import EngineOptions

MAX_NAME_LENGTH = 200
"""Characters of a model's, alias's or adapter's name."""

MAX_LORA_SCALE = 100
"""Either way: adapters are made for scales around 1, and any noise is as good as what lies beyond."""


@dataclass(frozen=True, slots=True)
class RequestRules:
    """How a request's JSON is changed before a worker sees it: drop, then fill in, then force."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Set where the request has no such key."""
    force: Mapping[str, Any] = field(default_factory=dict)
    """Set whatever the request says."""
    drop: tuple[str, ...] = ()
    """Removed from the request before `defaults` and `force`."""

    @property
    def is_empty(self) -> bool:
        """True when `apply` changes nothing, so that the body can pass as the bytes it came as."""
        return not (self.defaults or self.force or self.drop)

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new body with the rules applied; neither `body` nor the rules can be changed through it."""
        kept = {key: value for key, value in body.items() if key not in self.drop}
        filled = copy.deepcopy(unsaid(self.defaults, kept)) | kept
        return unforced(filled, self.force) | copy.deepcopy(dict(self.force))

    def over(self, base: RequestRules) -> RequestRules:
        """Return both sets of rules as one; where they name the same key, these win over `base`."""
        return RequestRules(
            {**base.defaults, **self.defaults},
            {**base.force, **self.force},
            (*base.drop, *(key for key in self.drop if key not in base.drop)),
        )


@dataclass(frozen=True, slots=True)
class AliasSpec:
    """Another name of a model, with request rules of its own."""

    name: str
    """With a `*` in it: any name of that form."""
    request: RequestRules = field(default_factory=RequestRules)
    listed: bool = True
    """Shown by `GET /v1/models`."""
    lora: Mapping[str, float] = field(default_factory=dict)
    """Adapters of the model that its requests get unless they say otherwise, with their scales."""


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """An adapter that is loaded with its model."""

    name: str
    source: str
    """The reference as written."""
    scale: float = 1.0
    """Where it is asked for without one."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Commands of a model that run at turns of its life, each as a list of words; () = none."""

    before_load: tuple[str, ...] = ()
    """The worker starts when it has succeeded."""
    after_load: tuple[str, ...] = ()
    after_unload: tuple[str, ...] = ()
    timeout_s: float = 30.0
    """After which a command is killed."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Another server that answers a model's requests."""

    url: str
    """Up to and without the path of a route: `https://HOST/v1`."""
    model: str
    """The name that the other server knows it by."""
    key_env: str | None = None
    """Environment variable of the router that holds the API key."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One entry of `devices:`: bounds of a device that is there, or a device declared outright. Sizes in bytes."""

    id: str
    budget_bytes: int | None = None
    headroom_bytes: int | None = None
    """None = the default of its kind."""
    prefer: int = 0
    memory_bytes: int | None = None
    """Set: the device is declared with so much memory, whether or not it is found."""
    kind: str = "gpu"
    """Of a declared device: `gpu` or `cpu`."""


_ENGINE_DEFAULTS = {option.name: option.default for option in dataclasses.fields(EngineOptions)}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model with every option resolved. Times in seconds."""

    name: str
    source: str
    """The `model:` reference as written; "" for a model of another server."""
    base_dir: Path
    """Folder that relative paths are relative to."""
    aliases: Mapping[str, AliasSpec] = field(default_factory=dict)
    loras: tuple[LoraSpec, ...] = ()
    """In this order they have the ids 0, 1, … in requests."""
    draft_source: str | None = None
    """The `draft_model:` reference as written."""
    context: int | None = None
    """Tokens that one request may use; None = auto."""
    slots: int = 4
    kv_tokens: int | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for `EngineOptions` that the catalogue sets, less context, slots and kv_tokens."""
    idle_unload_s: float = 900.0
    """From the end of the last request; 0 = never."""
    load_timeout_s: float = 300.0
    """Without any progress; 0 = no limit."""
    request_timeout_s: float = 0.0
    """0 = no limit."""
    queue_timeout_s: float = 300.0
    """0 = no limit."""
    max_queue: int = 256
    preload: bool = False
    pin: bool = False
    priority: int = 0
    max_tokens: int | None = None
    """Cap on the length of an answer; None = the room left in the context."""
    chat_template: str | None = None
    """Source text that replaces the model file's own template."""
    chat_template_file: Path | None = None
    """Where `chat_template` is read from, if it is a file."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    allow_request_templates: bool = False
    """Whether requests may bring a chat template of their own."""
    drop_billing_header: bool = True
    """Whether the line that changes with every request is taken out of system prompts."""
    request: RequestRules = field(default_factory=RequestRules)
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the worker."""
    description: str = ""
    tags: tuple[str, ...] = ()
    replicas: int = 1
    """Workers that it may have at the same time."""
    home: bool = False
    """Loaded again when everything else has been unloaded."""
    max_wait_s: float = 30.0
    """How long its requests wait for a busy model before that one must drain."""
    hang_timeout_s: float = 60.0
    """A worker that gives no sign of life for so long is killed; 0 = never."""
    devices: tuple[str, ...] = ()
    """Ids of the devices that it must run on; empty = any."""
    is_partial_allowed: bool = False
    """`gpu_layers: auto`: as many layers are offloaded as fit."""
    hooks: Hooks = field(default_factory=Hooks)
    remote: Remote | None = None
    """The server that answers instead of a worker."""
    calibrate: bool = True
    """Whether a worker on a CPU measures, in its first idle seconds, what passes cost."""
    file_marks: tuple[int, ...] = ()
    """Sizes and times of its files that are named by their paths, as they were when the catalogue was read: a file that
    is replaced under its name is another model."""
    problem: str | None = None
    """Why the model is unavailable (a missing template file, say); None = nothing is known to be wrong."""
    _fingerprint: str | None = field(default=None, init=False, repr=False, compare=False)

    def fingerprint(self) -> str:
        """Return a hash of everything that a running worker cannot change without a restart."""
        if self._fingerprint is None:
            object.__setattr__(self, "_fingerprint", self._hash())
            assert self._fingerprint is not None
        return self._fingerprint

    def _hash(self) -> str:
        engine = _ENGINE_DEFAULTS | dict(self.engine)
        parts = (
            self.source,
            str(self.base_dir),
            self.context,
            self.slots,
            self.kv_tokens,
            {name: value for name, value in engine.items() if name not in ("context", "slots", "kv_tokens")},
            self.max_tokens,
            self.chat_template,
            dict(self.chat_template_kwargs),
            self.allow_request_templates,
            self.drop_billing_header,
            dict(self.env),
            [(lora.name, lora.source, lora.scale) for lora in self.loras],
            self.draft_source,
            self.devices,
            self.is_partial_allowed,
            self.file_marks,
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def policy(self) -> ModelPolicy:
        """Return the part that the fleet decides on."""
        devices, is_split_allowed = self.devices, self.engine.get("split_mode") != "none"
        if not is_split_allowed and "main_gpu" in self.engine:
            devices = self.devices[self.engine["main_gpu"] :][:1] or self.devices
        return ModelPolicy(
            name=self.name,
            idle_unload_s=self.idle_unload_s,
            pin=self.pin,
            preload=self.preload,
            priority=self.priority,
            load_timeout_s=self.load_timeout_s,
            max_queue=self.max_queue,
            queue_timeout_s=self.queue_timeout_s,
            unavailable=self.problem,
            fingerprint=self.fingerprint(),
            replicas=self.replicas,
            home=self.home,
            max_wait_s=self.max_wait_s,
            devices=devices,
            gpu_layers=self.engine.get("gpu_layers", -1),
            is_partial_allowed=self.is_partial_allowed,
            is_split_allowed=is_split_allowed,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold for all models together, and the defaults of those that a model may override."""

    max_loaded: int | None = None
    """Models resident at the same time; None = as many as are asked for."""
    max_queue: int = 256
    queue_timeout_s: float = 300.0
    max_wait_s: float = 30.0
    """How long a busy model may keep another one waiting before it must drain."""
    max_body_bytes: int = 64 * 2**20
    max_resumes: int = 2
    """How often in a row an answer goes on elsewhere without a new token when its worker dies; 0 = never."""
    resume_timeout_s: float = 300.0
    """How long such an answer waits for another worker."""
    max_resume_bytes: int = 256 * 2**20
    """What is kept of all running requests together, so that they can go on elsewhere."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name in a request stands for."""

    spec: ModelSpec
    alias: AliasSpec | None = None
    """None when the model was asked for by its own name."""

    @property
    def rules(self) -> RequestRules:
        """The request rules that hold: the alias's over the model's."""
        return self.spec.request if self.alias is None else self.alias.request.over(self.spec.request)

    @property
    def lora(self) -> Mapping[str, float]:
        """The alias's adapters with their scales; empty for the model's own name."""
        return {} if self.alias is None else self.alias.lora


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything that is served; never changed, only replaced as a whole."""

    models: Mapping[str, ModelSpec]
    limits: Limits = field(default_factory=Limits)
    keys: tuple[KeySpec, ...] = ()
    default_model: str | None = None
    path: Path | None = None
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict)
    spares: int = 0
    """Processes that are kept ready to become workers."""
    _policies: Mapping[str, ModelPolicy] | None = field(default=None, init=False, repr=False, compare=False)
    _by_name: Mapping[str, Resolution] = field(init=False, repr=False, compare=False)
    _by_pattern: NamePatterns[tuple[ModelSpec, AliasSpec]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index every name once, because each request looks one up."""
        by_name: dict[str, Resolution] = {}
        for spec in self.models.values():
            by_name[spec.name] = Resolution(spec)
            by_name |= {alias.name: Resolution(spec, alias) for alias in spec.aliases.values()}
        patterns = [(name, found) for name, found in by_name.items() if WILDCARD in name]
        by_pattern = NamePatterns((name, (found.spec, found.alias)) for name, found in patterns if found.alias)
        object.__setattr__(self, "_by_name", {name: found for name, found in by_name.items() if WILDCARD not in name})
        object.__setattr__(self, "_by_pattern", by_pattern)

    def resolve(self, name: str | None) -> Resolution:
        """Return the model that `name` or an alias stands for; without a name the default or the only model.

        Raises: ModelNotFound naming the nearest names; BadRequest when the request must name a model.
        """
        if not name:
            if self.default_model is not None:
                return self.resolve(self.default_model)
            if len(self.models) == 1:
                return Resolution(next(iter(self.models.values())))
            raise no_model_said(list(self.models))
        if (found := self.find(name)) is not None:
            return found
        raise no_model_named(name, self.listed_names())

    def find(self, name: str) -> Resolution | None:
        """Return the model that `name` or an alias stands for; None = there is no such one."""
        return self._by_name.get(name) or self._pattern_for(name)

    def _pattern_for(self, name: str) -> Resolution | None:
        """Return what the pattern stands for that `name` fits best, with `name` as the alias's; None = it fits none."""
        if len(name) > MAX_NAME_LENGTH or not name.isprintable() or (best := self._by_pattern.find(name)) is None:
            return None
        spec, alias = best
        return Resolution(spec, dataclasses.replace(alias, name=name))

    def listed_names(self) -> list[str]:
        """Return every name that clients may be shown: models, and aliases that are not hidden."""
        return [name for name, found in self._by_name.items() if found.alias is None or found.alias.listed]

    def nearest_names(self, name: str, count: int = 3) -> list[str]:
        """Return up to `count` names that look like `name`, best first."""
        return nearest_names(name, self.listed_names(), count)

    def fleet_limits(self) -> FleetLimits:
        """Return the part of the limits that the fleet decides on."""
        return FleetLimits(max_loaded=self.limits.max_loaded, max_wait_s=self.limits.max_wait_s)

    def policies(self) -> Mapping[str, ModelPolicy]:
        """Return each model's policy by name; models of other servers are not the fleet's."""
        if self._policies is None:
            local = {name: spec.policy() for name, spec in self.models.items() if spec.remote is None}
            object.__setattr__(self, "_policies", local)
            assert self._policies is not None
        return self._policies
