"""The lines between the router and a fetch process, and what they say.

The router writes one `FetchJob` line to the process's stdin and keeps it open: end of file means "die now".
The process answers on stdout with JSON lines: any number of `FetchProgress`, then one `Fetched` or
`SourceError`. Pure. Must not know what a reference means.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass

MAX_LINE_BYTES = 48_000
"""Longer lines are cut by their writer: readers have a limit of 64 KiB."""

_MAX_CHARS = MAX_LINE_BYTES // 32
"""Of each of two texts, whose characters take at most twelve bytes."""

DOWNLOADING = "downloading"
JOINING = "joining"
VERIFYING = "verifying"

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_PART = re.compile(r"part (\d+) of (\d+)")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}|(?<=Bearer )\S+")


class SourceError(Exception):
    """A model's file is not here and cannot be brought here; the message is for the operator."""

    def __init__(self, message: str, *, is_permanent: bool = False, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.is_permanent = is_permanent
        """Trying again is pointless until the configuration, the environment or the file changes."""
        self.details = details
        """What another program printed: for the log, because it may name folders that clients need not know."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a fetch is. Units: bytes of the present phase."""

    phase: str
    """`downloading`, `joining` or `verifying`."""
    done_bytes: int
    total_bytes: int | None
    """None = not known."""
    detail: str = ""
    """For people: which file or part, or what is waited for."""

    @property
    def amount(self) -> str:
        """How much is done, for people: `13 of 89 MB`."""
        done = f"{self.done_bytes / 1e6:.0f}"
        return f"{done} of {self.total_bytes / 1e6:.0f} MB" if self.total_bytes else f"{done} MB"

    @property
    def share(self) -> float | None:
        """How much of the whole model is done, all its parts together; None = not known."""
        done = min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else None
        return share_of_all(self.phase, self.detail, done)

    @property
    def text(self) -> str:
        """All of it, for people: `downloading part 2 of 6, 13 of 89 MB`."""
        return f"{self.phase}{f' {self.detail}' if self.detail else ''}, {self.amount}"


def share_of_all(phase: str, detail: str, share: float | None) -> float | None:
    """Return how much of a whole model is done when `share` of the phase is; None = not known.

    Where a model comes in parts they count alike, and one that is being joined has arrived.
    """
    part = _PART.fullmatch(detail)
    if part is None or not 1 <= int(part[1]) <= int(part[2]):
        return share
    return (int(part[1]) - 1 + (1.0 if phase != DOWNLOADING else share or 0.0)) / int(part[2])


@dataclass(frozen=True, slots=True)
class Fetched:
    """The file (the first one of a split model) is complete, verified and in its place."""

    path: str


@dataclass(frozen=True, slots=True)
class FetchJob:
    """What a fetch process is to bring."""

    reference: str
    cache_dir: str
    is_offline: bool = False
    """Use what is on this machine; refuse to touch the network."""

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> FetchJob:
        """Return the job. Raises: ValueError when `line` is not one."""
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"not a fetch job: {error}") from None


Reply = FetchProgress | Fetched | SourceError


def encode_reply(reply: Reply) -> bytes:
    """Return one line of JSON, newline included, at most `MAX_LINE_BYTES` long."""
    body: dict[str, object]
    match reply:
        case FetchProgress():
            body = {"progress": dataclasses.asdict(reply)}
        case Fetched():
            body = {"fetched": reply.path}
        case SourceError():
            message, details = reply.message[:_MAX_CHARS], reply.details[-_MAX_CHARS:]
            body = {"error": message, "is_permanent": reply.is_permanent, "details": details}
    return json.dumps(body).encode() + b"\n"


def decode_reply(line: bytes) -> Reply | None:
    """Return what the process says; None for a line that is not one of ours (a library's chatter)."""
    try:
        match json.loads(line):
            case {"progress": dict(fields)}:
                return FetchProgress(**fields)
            case {"fetched": str(path)}:
                return Fetched(path)
            case {"error": str(message), "is_permanent": bool(is_permanent), "details": str(details)}:
                return SourceError(message, is_permanent=is_permanent, details=details)
            case _:
                return None
    except (ValueError, TypeError, RecursionError):
        return None


def without_secrets(text: str) -> str:
    """Return `text` less credentials in URLs and access tokens: it is going to be logged."""
    return _TOKEN.sub("***", _CREDENTIALS.sub("***@", text))
