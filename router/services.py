"""What every handler of the router may use, and what belongs to the request that is being handled.

Owns two records and the ways to reach them. Must hold no behaviour of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from router.account import Account
from router.auth import Grant, KeyRing
from router.body import BodyMemory
from router.conversations import Conversations
from router.cors import Cors
from router.dialects import Dialect
from router.host_guard import HostGuard
from router.key_guesses import KeyGuesses
from router.key_usage import KeyUsage
from router.lora_scales import LoraScales
from router.quarantine import Quarantine
from router.recent_requests import RecentRequests
from router.remotes import Remotes
from router.reply import Reply
from router.resuming import ResumeMemory
from router.routes import Route
from router.settings import RouterSettings

if TYPE_CHECKING:
    from router.metrics import RouterMetrics
    from router.reload import Reloader
    from router.supervisor import Supervisor
    from router.tracing import Trace, Tracing
    from router.worker_files import ModelFiles


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that one application is made of."""

    supervisor: Supervisor
    settings: RouterSettings
    metrics: RouterMetrics
    keys: KeyRing
    guard: HostGuard
    body_memory: BodyMemory
    reloader: Reloader
    started_at: int
    """Unix seconds; shown as the `created` of every model."""
    remotes: Remotes = field(default_factory=Remotes)
    """The servers of models that are not here."""
    conversations: Conversations = field(default_factory=Conversations)
    """Responses that others may go on from."""
    kept_entries: dict[str, Any] = field(default_factory=dict)
    """What `listing.py` keeps between two lists of models."""
    kept_tags: dict[str, Any] = field(default_factory=dict)
    """What `ollama.py` keeps between two of its own."""
    lora_scales: LoraScales = field(default_factory=LoraScales)
    """Adapters of requests that name none."""
    store: ModelFiles | None = None
    """Finds and fetches model files; None = nothing can be pulled."""
    resume_memory: ResumeMemory = field(default_factory=ResumeMemory)
    """What is kept of running requests so that they can go on with another worker."""
    quarantine: Quarantine = field(default_factory=Quarantine)
    """Requests that may be what kills their workers."""
    recent: RecentRequests = field(default_factory=RecentRequests)
    """The last requests that have ended."""
    tracing: Tracing | None = None
    """Sends spans of requests to models; None = nobody wants them."""
    cors: Cors = field(default_factory=Cors)
    """Pages that may read answers."""
    guesses: KeyGuesses = field(default_factory=KeyGuesses)
    """Wrong API keys that have come lately."""
    key_usage: KeyUsage = field(default_factory=KeyUsage)
    """What API keys have used of their limits."""


SERVICES = web.AppKey("services", Services)


@dataclass(slots=True)
class Exchange:
    """One request and what is known of it so far."""

    account: Account
    dialect: Dialect
    reply: Reply
    grant: Grant
    route: Route | None = None
    trace: Trace | None = None
    """Of requests to models, where they are traced."""
    close: Callable[[], None] | None = None
    """Writes the account down, once, at the end; None = the request goes on without its client, and does it itself."""


_current: ContextVar[Exchange] = ContextVar("exchange")  # each request runs in a task of its own


def open_exchange(exchange: Exchange) -> None:
    """Make `exchange` the one of this request."""
    _current.set(exchange)


def current_exchange() -> Exchange:
    """Return the exchange of the request that this task handles."""
    return _current.get()


def find_exchange() -> Exchange | None:
    """Return the exchange of this task; None when it handles no request."""
    return _current.get(None)
