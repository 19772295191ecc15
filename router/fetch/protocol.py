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

DOWNLOADING = "downloading"
JOINING = "joining"
VERIFYING = "verifying"

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}|(?<=Bearer )\S+")


class SourceError(Exception):
    """A model's file is not here and cannot be brought here; the message is for the operator."""

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_permanent = is_permanent
        """Trying again is pointless until the configuration, the environment or the file changes."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a fetch is. Units: bytes of the present phase."""

    phase: str
    """`downloading`, `joining` or `verifying`."""
    done_bytes: int
    total_bytes: int | None
    """None = not known."""
    detail: str = ""
    """For people: which file or package, or what is waited for."""


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
            message = reply.message[: MAX_LINE_BYTES // 16]  # one character takes at most twelve bytes
            body = {"error": message, "is_permanent": reply.is_permanent}
    return json.dumps(body).encode() + b"\n"


def decode_reply(line: bytes) -> Reply | None:
    """Return what the process says; None for a line that is not one of ours (a library's chatter)."""
    try:
        match json.loads(line):
            case {"progress": dict(fields)}:
                return FetchProgress(**fields)
            case {"fetched": str(path)}:
                return Fetched(path)
            case {"error": str(message), "is_permanent": bool(is_permanent)}:
                return SourceError(message, is_permanent=is_permanent)
            case _:
                return None
    except (ValueError, TypeError):
        return None


def without_secrets(text: str) -> str:
    """Return `text` less credentials in URLs and access tokens: it is going to be logged."""
    return _TOKEN.sub("***", _CREDENTIALS.sub("***@", text))
