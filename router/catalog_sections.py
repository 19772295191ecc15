"""The tables of `models.yaml` beside the models: limits, API keys, devices and the top level itself.

Plain data as in `catalog_keys.py`, for the same readers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from router.api_keys import SCOPES, KeyLimits, KeySpec
from router.catalog import DeviceSpec, Limits
from router.catalog_keys import MAX_BYTES, MAX_SECONDS, SECONDS, Key, table
from router.catalog_kinds import Choice, Digest, FilePath, Number, Size, Texts, Variable, Whole

SPARES = Whole(0, 16)

_KEY = {f.name: f.default for f in dataclasses.fields(KeySpec)}
_KEY_LIMITS = {f.name: f.default for f in dataclasses.fields(KeyLimits)}
_DEVICE = {f.name: f.default for f in dataclasses.fields(DeviceSpec)}
_LIMITS = {f.name: f.default for f in dataclasses.fields(Limits)}
LIMIT_KEYS: Mapping[str, Key] = table(
    Key("max_loaded", Whole(1, 10_000), "Models in memory at the same time. Without it: no limit."),
    Key("max_queue", Whole(1, 100_000), "Requests that may wait for one model.", _LIMITS["max_queue"]),
    Key(
        "queue_timeout_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds that a request may wait for a place; 0 = no limit.",
        _LIMITS["queue_timeout_s"],
    ),
    Key(
        "max_wait_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds that a busy model may keep another one from loading before it takes no new requests.",
        _LIMITS["max_wait_s"],
    ),
    Key(
        "max_body_bytes",
        Size(1024, 2**32),
        "Largest request body.",
        _LIMITS["max_body_bytes"],
    ),
    Key(
        "max_resumes",
        Whole(0, 100),
        "How often in a row a running answer goes on with another worker without a new token when its worker dies; "
        "0 = never.",
        _LIMITS["max_resumes"],
    ),
    Key(
        "resume_timeout_s",
        Number(1, MAX_SECONDS, hint=SECONDS),
        "Seconds that such an answer waits for another worker.",
        _LIMITS["resume_timeout_s"],
    ),
    Key(
        "max_resume_bytes",
        Size(0, 2**40),
        "Memory for what is kept of all running requests together so that they can go on with another worker.",
        _LIMITS["max_resume_bytes"],
    ),
)

API_KEY_KEYS: Mapping[str, Key] = table(
    Key("env", Variable(), "Environment variable of the server that holds the key.", is_reference=True),
    Key("file", FilePath(), "File that holds the key, relative to this file.", is_reference=True),
    Key("sha256", Digest(), "SHA-256 sum of the key in hexadecimal.", is_reference=True),
    Key("scopes", Texts(SCOPES), "What the key may do.", ("inference",)),
    Key(
        "priority",
        Whole(-100, 100),
        "Added to the `priority` of its requests: where requests wait, higher goes first.",
        _KEY["priority"],
    ),
    Key(
        "models",
        Texts(are_models=True),
        "Models and aliases that it may use and see, by name or by patterns such as `team-*`. Without it: all of them.",
        _KEY_LIMITS["models"],
    ),
    Key(
        "max_priority",
        Whole(0, 100),
        "The highest `priority` that its requests may ask for. Without it: 0, and any for scope `admin`.",
    ),
    Key("max_concurrent", Whole(1, 100_000), "Requests that may run or wait at the same time. Without it: no limit."),
    Key("requests_per_min", Whole(1, 10**6), "Requests that may begin within a minute. Without it: no limit."),
    Key(
        "tokens_per_min",
        Whole(1, 10**9),
        "Tokens, of prompts and answers together, within a minute. Without it: no limit.",
    ),
    Key(
        "weight",
        Number(0.01, 100),
        "Its share where requests of several keys wait: one of weight 2 gets twice the tokens of one of weight 1.",
        _KEY_LIMITS["weight"],
    ),
)

DEVICE_KEYS: Mapping[str, Key] = table(
    Key("budget", Size(0, MAX_BYTES), "Most memory that all models together may take there; 0 = none may run there."),
    Key(
        "headroom",
        Size(0, MAX_BYTES),
        "Memory that is kept free for whatever cannot be foreseen. Without it: what suits the kind of device.",
    ),
    Key(
        "prefer",
        Whole(-1000, 1000),
        "Where a model fits on several devices, one with a higher number is taken first.",
        _DEVICE["prefer"],
    ),
    Key(
        "memory",
        Size(1, MAX_BYTES),
        "Declares the device outright, with so much memory, whether or not it is found on this machine.",
    ),
    Key("kind", Choice(("gpu", "cpu")), "Of a device that is declared with `memory`.", _DEVICE["kind"]),
)

TOP_KEYS: Mapping[str, str] = {
    "models": "What is served: a map from name to options, or from name to just a reference.",
    "defaults": "Options for every model that does not set them itself.",
    "limits": "Bounds that hold for all models together.",
    "keys": "API keys: a map from id to where the key is found and what it may do.",
    "devices": "Bounds of devices, or devices that are declared outright: a map from a device's id to options.",
    "default_model": "Model or alias for requests that name none.",
    "spares": "Processes that are kept ready to become workers, so that a load costs no start of Python; 0 to 16.",
}
