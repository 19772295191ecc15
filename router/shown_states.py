"""The states of models as clients and operators see them: those of workers, and three more.

Owns these words and llama-server's counterparts. Must not ask anybody: everything is passed in.
"""

from __future__ import annotations

from router.catalog import ModelSpec
from router.exits import NO_FAILURES
from router.fleet_views import ModelView
from router.lifecycle import WorkerState

UNAVAILABLE = "unavailable"
"""It cannot be started at all: its file or its template is not there, or it fits on no device."""
DOWNLOADING = "downloading"
"""Its file is being fetched."""
REMOTE = "remote"
"""Another server answers for it."""

STATES = (*(state.value for state in WorkerState), UNAVAILABLE, DOWNLOADING, REMOTE)
"""Every word that `state` may have."""

LLAMA_SERVER_STATES = ("unloaded", "loading", "loaded", "unloading", DOWNLOADING)
"""The words of llama-server's router."""

_LLAMA_SERVER_WORDS = {
    WorkerState.UNLOADED: "unloaded",
    WorkerState.STARTING: "loading",
    WorkerState.LOADING: "loading",
    WorkerState.READY: "loaded",
    WorkerState.DRAINING: "unloading",
    WorkerState.STOPPING: "unloading",
    WorkerState.BACKOFF: "unloaded",
    WorkerState.FAILED: "unloaded",
}


def shown_state(spec: ModelSpec, view: ModelView | None, *, is_fetching: bool) -> str:
    """Return the state of a model, one of `STATES`."""
    if spec.remote is not None:
        return REMOTE if spec.problem is None else UNAVAILABLE
    if view is not None and view.state is not WorkerState.UNLOADED:
        return DOWNLOADING if is_fetching and view.state is WorkerState.STARTING else view.state.value
    is_impossible = spec.problem is not None or (view is not None and view.impossible is not None)
    return UNAVAILABLE if is_impossible else WorkerState.UNLOADED.value


def shown_reason(spec: ModelSpec, view: ModelView | None) -> str | None:
    """Return why a model cannot be used now; None when nothing is known against it."""
    if view is not None and view.state in (WorkerState.BACKOFF, WorkerState.FAILED) and view.last_exit is not None:
        return view.last_exit.detail
    is_impossible = view is not None and not view.residents and spec.problem is None
    return view.impossible if view is not None and is_impossible else spec.problem


def has_failed(view: ModelView | None) -> bool:
    """Return whether the model's last worker ended as it should not have."""
    return view is not None and view.last_exit is not None and view.last_exit.reason not in NO_FAILURES


def llama_server_state(spec: ModelSpec, view: ModelView | None, *, is_fetching: bool) -> str:
    """Return the same in llama-server's words."""
    if spec.remote is not None:
        return "loaded" if spec.problem is None else "unloaded"
    state = WorkerState.UNLOADED if view is None else view.state
    if state is WorkerState.STARTING and is_fetching:
        return DOWNLOADING
    return _LLAMA_SERVER_WORDS[state]
