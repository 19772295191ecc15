"""What a server has told of itself: all of `GET /status`, kept up by the events of `GET /events`.

Owns the reading of both. What a server leaves out or tells in an unknown form is not known. Must not draw or ask.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from router.cli.server import Event

TOPICS = "server,models,slots,devices,queue"
"""What of `/events` keeps a picture up."""

_TOLD = frozenset(("server", "slots", "devices", "queue"))
_FALLING = ("idle_unload_in_s", "retry_in_s")
_LIVE_STATES = ("ready", "starting", "downloading", "loading", "draining", "stopping")
_FAILED_STATES = ("failed", "backoff", "unavailable")


class Picture:
    """The server as it was last seen."""

    def __init__(self) -> None:
        self.server: Mapping[str, Any] = {}
        self.devices: Sequence[Mapping[str, Any]] = ()
        self.slots: Sequence[Mapping[str, Any]] = ()
        self.queue: Mapping[str, Any] = {}
        self._models: dict[str, Mapping[str, Any]] = {}
        self._seen_s: dict[str, float] = {}
        """When each part was told: the topics, and `model NAME`."""

    @classmethod
    def of(cls, status: Any) -> Picture:
        """Return the picture that an answer of `GET /status` gives."""
        picture = cls()
        found = _mapping(status)
        picture.server, picture.queue = _mapping(found.get("server")), _mapping(found.get("queue"))
        picture.devices, picture.slots = _mappings(found.get("devices")), _mappings(found.get("slots"))
        for model in _mappings(found.get("models")):
            picture._keep(model)
        return picture

    def apply(self, event: Event) -> bool:
        """The picture holds what `event` tells; return whether it told anything of it."""
        self._seen_s[event.name] = time.monotonic()
        match event.name:
            case "server":
                self.server = _mapping(event.data)
            case "model":
                self._keep(_mapping(event.data))
            case "model_removed":
                self._models.pop(str(_mapping(event.data).get("model")), None)
            case "slots":
                self.slots = _mappings(event.data)
            case "devices":
                self.devices = _mappings(event.data)
            case "queue":
                self.queue = _mapping(event.data)
            case _:
                return False
        return True

    @property
    def models(self) -> list[Mapping[str, Any]]:
        """All models: those that work first, then the loaded, the failed, the others; each as they are configured."""
        return sorted(self._models.values(), key=_rank)

    @property
    def waiting(self) -> Sequence[Mapping[str, Any]]:
        """The requests that wait, as far as they are listed."""
        return _mappings(self.queue.get("requests"))

    @property
    def num_waiting(self) -> int | None:
        """How many requests wait; None = not known."""
        length = self.queue.get("length")
        return length if isinstance(length, int) else None

    @property
    def busy_slots(self) -> list[Mapping[str, Any]]:
        """The slots with a request in them."""
        return [slot for slot in self.slots if slot.get("is_processing")]

    def slots_of(self, model: object) -> list[Mapping[str, Any]]:
        """Return the slots of a model's workers."""
        return [slot for slot in self.slots if slot.get("model") == model]

    @property
    def is_whole(self) -> bool:
        """Whether every topic has told what is."""
        return _TOLD.issubset(self._seen_s)

    def aged(self, now_s: float) -> Picture:
        """Return the picture with the times in it as they are by now, though nobody has told them anew."""
        picture = Picture()
        picture.server, picture.devices = self.server, self.devices
        queue_s, slots_s = (now_s - self._seen_s.get(name, now_s) for name in ("queue", "slots"))
        waiting = [_older(one, queue_s, growing=("waits_s",)) for one in self.waiting]
        picture.queue = {**self.queue, "requests": waiting}
        picture.slots = [_older(slot, slots_s, growing=("age_s",)) for slot in self.slots]
        picture._models = {
            name: _older(model, now_s - self._seen_s.get(f"model {name}", now_s), falling=_FALLING)
            for name, model in self._models.items()
        }
        return picture

    def _keep(self, model: Mapping[str, Any]) -> None:
        if model.get("id") is not None and model.get("parent") is None:
            self._models[str(model["id"])] = model
            self._seen_s[f"model {model['id']}"] = time.monotonic()


def is_live(model: Mapping[str, Any]) -> bool:
    """Return whether a model has a worker or is about to, or somebody waits for it."""
    return model.get("state") in _LIVE_STATES or bool(model.get("queue_length"))


def has_failed(model: Mapping[str, Any]) -> bool:
    """Return whether a model cannot be used."""
    return model.get("state") in _FAILED_STATES


def share_of(progress: Mapping[str, Any]) -> float | None:
    """Return how much of a model's download or load is done, all parts of a download together; None = not known."""
    from router.fetch.protocol import share_of_all

    fraction = progress.get("fraction")
    share = float(fraction) if isinstance(fraction, int | float) else None
    return share_of_all(str(progress.get("phase") or ""), str(progress.get("detail") or ""), share)


def _rank(model: Mapping[str, Any]) -> int:
    if model.get("running_requests") or model.get("queue_length"):
        return 0
    if is_live(model):
        return 1
    if has_failed(model):
        return 2
    return 3 if model.get("state") == "remote" else 4


def _older(
    one: Mapping[str, Any], by_s: float, *, growing: Sequence[str] = (), falling: Sequence[str] = ()
) -> Mapping[str, Any]:
    changed = {key: one[key] + by_s for key in growing if isinstance(one.get(key), int | float)}
    changed |= {key: max(0.0, one[key] - by_s) for key in falling if isinstance(one.get(key), int | float)}
    return {**one, **changed} if changed else one


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
