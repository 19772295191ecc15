"""The picture of a server as rows of text: which columns there are, and what stands in them.

Pure: no terminal, no server. What is not known is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.cli.formats import as_commands, duration, number, percent, rate, size
from router.cli.picture import Picture, has_failed, is_live, share_of

if TYPE_CHECKING:
    from router.cli.output import Cell

MANY_MODELS = 20
"""With more of them, those at rest are only counted."""

_STYLES = {
    **dict.fromkeys(("ready", "remote"), "green"),
    **dict.fromkeys(("starting", "downloading", "loading", "draining", "stopping"), "yellow"),
    **dict.fromkeys(("failed", "backoff", "unavailable"), "red"),
}
_BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the names of their columns."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    numbers: tuple[str, ...] = ()
    droppable: tuple[str, ...] = ()
    """Columns that a narrow terminal does without, the first of them first."""


def shown_models(picture: Picture, *, all_models: bool) -> list[Mapping[str, Any]]:
    """Return the models that are shown: all of them if they are few or wanted."""
    models = picture.models
    if all_models or len(models) <= MANY_MODELS:
        return models
    return [model for model in models if is_live(model) or has_failed(model)]


def model_table(picture: Picture, models: Iterable[Mapping[str, Any]]) -> Table:
    """Return a row for each of `models`."""
    rows = [
        (
            str(model.get("usable_as") or model["id"]),
            _state(model),
            _devices(model.get("devices")),
            _slots(picture, model),
            number(model.get("queue_length")),
            rate(_speed(model, "generated")),
            rate(_speed(model, "prompt")),
            _memory(model),
            _unloads(model),
        )
        for model in models
    ]
    return Table(
        ("MODEL", "STATE", "DEVICE", "SLOTS", "QUEUE", "TOKENS/S", "PROMPT/S", "MEMORY", "UNLOADS IN"),
        rows,
        ("SLOTS", "QUEUE", "TOKENS/S", "PROMPT/S", "MEMORY", "UNLOADS IN"),
        ("PROMPT/S", "DEVICE", "UNLOADS IN", "QUEUE", "MEMORY"),
    )


def device_table(picture: Picture, *, has_bars: bool) -> Table:
    """Return a row for each device; with bars of how full it is, where somebody sees them."""
    columns = ("DEVICE", "NAME", "MODELS", "OTHERS", "ROOM", "OF")
    rows: list[tuple[Cell, ...]] = []
    for device in picture.devices:
        description = device.get("description")
        cells: tuple[Cell, ...] = (
            str(device.get("id")),
            str(description) if description else None,
            size(device.get("reserved_bytes")),
            size(device.get("used_by_others_bytes")),
            size(device.get("free_bytes")),
            size(device.get("total_bytes")),
        )
        rows.append((*cells, _bar(device)) if has_bars else cells)
    return Table(
        (*columns, "") if has_bars else columns, rows, ("MODELS", "OTHERS", "ROOM", "OF"), ("NAME", "", "OTHERS")
    )


def slot_table(picture: Picture) -> Table:
    """Return a row for each slot that is busy."""
    has_replicas = any(slot.get("replica") for slot in picture.slots)
    rows = [
        (
            number(slot.get("model")),
            f"{slot.get('replica')}.{slot.get('id')}" if has_replicas else number(slot.get("id")),
            str(slot.get("state") or "").lower().replace("_", " "),
            _prompt(slot),
            number(slot.get("prompt_cached")),
            number(slot.get("generated")),
            rate(slot.get("tokens_per_second")),
            duration(slot.get("age_s")),
            number(slot.get("request_id")),
        )
        for slot in picture.busy_slots
    ]
    return Table(
        ("MODEL", "SLOT", "DOES", "PROMPT", "CACHED", "ANSWER", "TOKENS/S", "SINCE", "REQUEST"),
        rows,
        ("SLOT", "PROMPT", "CACHED", "ANSWER", "TOKENS/S", "SINCE"),
        ("REQUEST", "CACHED", "SINCE"),
    )


def queue_table(picture: Picture) -> Table:
    """Return a row for each request that waits."""
    rows = [
        (
            duration(one.get("waits_s")),
            number(one.get("model")),
            number(one.get("priority")),
            number(one.get("key")),
            number(one.get("waiting_for")),
            number(one.get("request_id")),
        )
        for one in picture.waiting
    ]
    return Table(
        ("WAITS", "MODEL", "PRIORITY", "KEY", "FOR", "REQUEST"),
        rows,
        ("WAITS", "PRIORITY"),
        ("REQUEST", "KEY", "PRIORITY"),
    )


def heading(picture: Picture, url: str, now: float) -> str:
    """Return what the server is, on one line; `now` in Unix seconds."""
    server = picture.server
    parts = [" ".join(part for part in ("Corral", str(server.get("version") or ""), "at", url) if part)]
    started_at = server.get("started_at")
    if isinstance(started_at, int | float):
        parts.append(f"up {duration(now - started_at)}")
    if server.get("loaded") is not None and server.get("models") is not None:
        parts.append(f"{server['loaded']} of {server['models']} models loaded")
    if picture.num_waiting:
        parts.append(f"{picture.num_waiting} waiting")
    return " · ".join(parts)


def warnings(picture: Picture, models: Iterable[Mapping[str, Any]], now: float) -> list[str]:
    """Return what somebody should look at: a refused configuration, models that cannot be used, a server that stops."""
    found = []
    if picture.server.get("status") not in (None, "ok"):
        found.append(f"the server is {picture.server['status']}: it takes no new requests")
    configuration = picture.server.get("configuration")
    if isinstance(configuration, Mapping) and configuration.get("error"):
        since = configuration.get("since")
        ago = f" since {duration(now - since)} ago" if isinstance(since, int | float) else ""
        found.append(f"the configuration is invalid{ago}; the one before stays in force: {configuration['error']}")
    for model in models:
        if model.get("reason"):
            retry_s = model.get("retry_in_s")
            again = "" if retry_s is None else f"; a request tries again in {duration(retry_s)}"
            found.append(f"{model['id']}: {as_commands(str(model['reason']))}{again}")
    return found


def _state(model: Mapping[str, Any]) -> Cell:
    from rich.text import Text

    state = str(model.get("state") or "")
    progress = model.get("progress")
    if isinstance(progress, Mapping):
        phase = str(progress.get("phase") or state)
        share = percent(share_of(progress))
        return Text(phase if share is None else f"{phase} {share}", style=_STYLES.get(state, "yellow"))
    return Text(state, style=_STYLES.get(state, "dim"))


def _slots(picture: Picture, model: Mapping[str, Any]) -> str | None:
    """Return `busy/all`, and how many requests the workers have besides: those are next."""
    slots = picture.slots_of(model["id"])
    busy = sum(bool(slot.get("is_processing")) for slot in slots)
    more = (model.get("running_requests") or 0) - busy
    is_full = busy == len(slots) and more > 0
    return f"{busy}/{len(slots)}{f' +{more}' if is_full else ''}" if slots else None


def _speed(model: Mapping[str, Any], of: str) -> float | None:
    speeds = model.get("tokens_per_second")
    found = speeds.get(of) if isinstance(speeds, Mapping) else None
    return found if isinstance(found, int | float) else None


def _memory(model: Mapping[str, Any]) -> str | None:
    """Return what a model uses; what it will need, marked as that, while it uses nothing."""
    memory = model.get("memory")
    if not isinstance(memory, Mapping):
        return None
    if memory.get("used_bytes") is not None:
        return size(memory["used_bytes"])
    needed = size(memory.get("needed_bytes"))
    return None if needed is None else f"needs {needed}"


def _unloads(model: Mapping[str, Any]) -> str | None:
    if model.get("is_pinned"):
        return "pinned"
    if model.get("running_requests"):
        return "in use"
    return duration(model.get("idle_unload_in_s"))


def _prompt(slot: Mapping[str, Any]) -> str | None:
    total, done = slot.get("prompt_total"), slot.get("prompt_processed")
    if total is None:
        return None
    return f"{total}" if done is None or done >= total else f"{done}/{total}"


def _bar(device: Mapping[str, Any]) -> Cell:
    """Return how full a device is: models, others, free."""
    from rich.text import Text

    total = device.get("total_bytes")
    if not isinstance(total, int | float) or total <= 0:
        return None
    own = _cells(device.get("reserved_bytes"), total)
    others = min(_BAR_WIDTH - own, _cells(device.get("used_by_others_bytes"), total))
    return Text.assemble(
        ("█" * own, "cyan"), ("▓" * others, "bright_black"), ("░" * (_BAR_WIDTH - own - others), "bright_black")
    )


def _cells(num_bytes: Any, total: float) -> int:
    if not isinstance(num_bytes, int | float) or num_bytes <= 0:
        return 0
    return min(_BAR_WIDTH, max(1, round(_BAR_WIDTH * num_bytes / total)))


def _devices(ids: Any) -> str | None:
    """Return the devices of a model as the table of devices spells them: a worker calls the CPU `cpu`."""
    if not isinstance(ids, list) or not ids:
        return None
    return ", ".join("CPU" if str(one).lower() == "cpu" else str(one) for one in ids)
