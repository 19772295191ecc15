"""What answers have said so far, so that a client whose connection was lost can read on where it was.

Owns the bounds: bytes of one and of all, how many, for how long, how many clients read one; and what an id must be.
Each API key has its own streams, so that none reads another's. Pure: must not know a clock, tasks or sockets.

An offset counts the bytes of the reply's body from its beginning. The oldest bytes go first: what is there is
`start … end`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from router.errors import BadRequest, Gone, TooManyRequests

CONVERSATION = "X-Corral-Conversation"
NEW = "new"
"""In place of an id: the server makes one."""
_ID = re.compile(r"[A-Za-z0-9._~-]{16,128}")
MIN_OPEN_ID_CHARS = 22
"""Of an id where no API key protects it: 22 random characters have 128 bits."""
MAX_READERS = 4
"""Of one stream."""
_SHARE_OF_KEY = 0.25
"""Of all streams, where there are keys."""


def check_id(text: str, *, has_keys: bool) -> str:
    """Return the id of a conversation. Raises: BadRequest."""
    least = 16 if has_keys else MIN_OPEN_ID_CHARS
    if _ID.fullmatch(text) is None or len(text) < least:
        why = "" if has_keys else ", because a server without API keys has nothing else to protect it"
        raise BadRequest(
            f"'{CONVERSATION}' must be `{NEW}` or an id of {least} to 128 characters of A-Z a-z 0-9 . _ ~ - that "
            f"nobody can guess, such as a random UUID{why}",
            code="invalid_conversation_id",
            param=CONVERSATION,
        )
    return text


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How much is kept, and for how long."""

    max_count: int = 256
    max_bytes: int = 64 * 2**20
    """Of all together."""
    max_stream_bytes: int = 4 * 2**20
    """Of each one; what is older goes."""
    detached_s: float = 300.0
    """So long does an answer go on that nobody reads."""
    kept_s: float = 300.0
    """So long can one that is over still be read."""


@dataclass(frozen=True, slots=True)
class Head:
    """What comes before a reply's body."""

    status: int
    headers: Mapping[str, str]


@dataclass(slots=True, eq=False)
class Reader:
    """One client that reads a stream."""

    stream: KeptStream
    offset: int
    """Of the byte that it needs next."""
    is_open: bool = False
    """The client has got a status line."""
    is_cut: bool = False
    """It was too slow: nobody waits for it any more."""

    @property
    def is_lost(self) -> bool:
        """Whether bytes that it has not read are gone."""
        return self.is_cut or self.offset < self.stream.start


@dataclass(slots=True, eq=False)
class KeptStream:
    """One reply: as much of it as there is."""

    owner: str | None
    id_digest: bytes
    alone_since_s: float
    """When the last reader left; of no meaning while there are any."""
    head: Head | None = None
    """None = the reply has not begun."""
    start: int = 0
    over_at_s: float | None = None
    """None = it goes on."""
    is_kept: bool = True
    """It can be found."""
    readers: set[Reader] = field(default_factory=set)
    _data: bytearray = field(default_factory=bytearray, repr=False)

    @property
    def num_bytes(self) -> int:
        """How many are there."""
        return len(self._data)

    @property
    def end(self) -> int:
        """The offset that the next byte will have."""
        return self.start + len(self._data)

    @property
    def is_over(self) -> bool:
        """Nothing will be added."""
        return self.over_at_s is not None

    @property
    def is_idle(self) -> bool:
        """It is over, and nobody reads it."""
        return self.is_over and not self.readers

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return what is there from `offset` on, `max_bytes` of it at most; b"" = nothing yet."""
        at = offset - self.start
        assert at >= 0, "the reader is lost"
        return bytes(self._data[at : at + max_bytes])

    def add(self, data: bytes) -> None:
        """The bytes are the last ones now."""
        self._data += data

    def drop(self, num_bytes: int) -> None:
        """The first bytes are gone; none where the number is below 0."""
        num_dropped = max(0, min(num_bytes, len(self._data)))
        self.start += num_dropped
        del self._data[:num_dropped]


class KeptStreams:
    """All of one server."""

    def __init__(self, limits: StreamLimits = StreamLimits()) -> None:
        self.limits = limits
        self._streams: dict[bytes, KeptStream] = {}
        """By owner and id; the oldest first."""
        self._forgotten: set[KeptStream] = set()
        """Those that somebody still reads."""
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What all of them take of the memory."""
        return self._num_bytes

    def counts(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        all_, over = self._streams.values(), sum(stream.is_over for stream in self._streams.values())
        read = sum(bool(stream.readers) and not stream.is_over for stream in all_)
        return {"attached": read, "detached": len(all_) - over - read, "finished": over}

    def find(self, owner: str | None, conversation: str) -> KeptStream | None:
        """Return the stream of this API key's conversation; None = there is none."""
        return self._streams.get(_digest(owner, conversation))

    def open(self, owner: str | None, conversation: str, now_s: float) -> KeptStream:
        """Return a new stream, which takes the place of an older one of the same conversation.

        Raises: TooManyRequests.
        """
        digest = _digest(owner, conversation)
        if (older := self._streams.get(digest)) is not None:
            self.forget(older)
        self._make_place(owner)
        stream = self._streams[digest] = KeptStream(owner, digest, now_s)
        return stream

    def add(self, stream: KeptStream, data: bytes) -> None:
        """`data` can be read; older bytes go where the bounds demand it."""
        if not stream.is_kept and not stream.readers:
            return
        stream.add(data)
        self._num_bytes += len(data)
        self._drop(stream, stream.num_bytes - self.limits.max_stream_bytes)
        while (excess := self._num_bytes - self.limits.max_bytes) > 0:
            if (idle := self._idle_of_largest()) is not None:
                self.forget(idle)
            else:
                large = [one for one in self._forgotten if one.num_bytes] or self._streams.values()
                self._drop(max(large, key=lambda one: one.num_bytes), excess)

    def finish(self, stream: KeptStream, now_s: float) -> None:
        """Nothing more will come."""
        if stream.over_at_s is None:
            stream.over_at_s = now_s

    def forget(self, stream: KeptStream) -> None:
        """It cannot be found any more; whoever reads it now reads on."""
        if stream.is_kept:
            stream.is_kept = False
            del self._streams[stream.id_digest]
            self._forgotten.add(stream)
            self._drop_unread(stream)

    # --- readers ---

    def attach(self, stream: KeptStream, offset: int) -> Reader:
        """Return a new reader of what comes from `offset` on. Raises: Gone, BadRequest, TooManyRequests."""
        if offset < stream.start:
            raise Gone(
                f"the bytes before offset {stream.start} of this reply are no longer kept: read on with "
                f"`from={stream.start}`, or send the request again",
                param="from",
            )
        if offset > stream.end:
            raise BadRequest(
                f"'from' must be at most {stream.end}, which is how many bytes this reply has so far, not {offset}",
                param="from",
            )
        if len(stream.readers) >= MAX_READERS:
            raise TooManyRequests(
                f"{MAX_READERS} clients read this reply already: try again when one has left",
                code="too_many_readers",
                retry_after_s=5.0,
            )
        reader = Reader(stream, offset)
        stream.readers.add(reader)
        return reader

    def detach(self, reader: Reader, now_s: float) -> None:
        """The reader reads no more."""
        stream = reader.stream
        if reader in stream.readers:
            stream.readers.remove(reader)
            stream.alone_since_s = now_s
            self._drop_unread(stream)

    def has_room(self, stream: KeptStream, num_bytes: int) -> bool:
        """Return whether so many bytes can come without any being lost to a reader that has not read them yet."""
        return not any(self._is_overtaken(reader, num_bytes) for reader in stream.readers)

    def leave_behind(self, stream: KeptStream, num_bytes: int, now_s: float) -> None:
        """Those readers that are too slow for so many bytes are no readers any more."""
        for reader in [one for one in stream.readers if self._is_overtaken(one, num_bytes)]:
            reader.is_cut = True
            self.detach(reader, now_s)

    def _is_overtaken(self, reader: Reader, num_bytes: int) -> bool:
        stream = reader.stream
        return reader.offset < min(stream.end, stream.end + num_bytes - self.limits.max_stream_bytes)

    # --- time ---

    def abandoned(self, now_s: float) -> list[KeptStream]:
        """Return those that go on although nobody has read them for too long; those kept long enough are forgotten."""
        for stream in list(self._streams.values()):
            if stream.is_idle and self._due_s(stream) <= now_s:
                self.forget(stream)
        return [one for one in self._streams.values() if self._is_due(one, now_s)]

    def next_due_s(self) -> float | None:
        """Return when `abandoned` has to be asked next; None = there is nothing to wait for."""
        return min((self._due_s(one) for one in self._streams.values() if not one.readers), default=None)

    def _is_due(self, stream: KeptStream, now_s: float) -> bool:
        return not stream.is_over and not stream.readers and self._due_s(stream) <= now_s

    def _due_s(self, stream: KeptStream) -> float:
        if stream.over_at_s is None:
            return stream.alone_since_s + self.limits.detached_s
        return max(stream.over_at_s, stream.alone_since_s) + self.limits.kept_s

    # --- room ---

    def _make_place(self, owner: str | None) -> None:
        """Return when one more may come. Raises: TooManyRequests."""
        max_of_key = max(1, int(self.limits.max_count * _SHARE_OF_KEY))
        num_of_key = sum(1 for _ in self._of(owner))
        if owner is not None and num_of_key >= max_of_key:
            self._replace_idle(num_of_key, owner)
        elif len(self._streams) >= self.limits.max_count:
            self._replace_idle(len(self._streams))

    def _replace_idle(self, num_streams: int, *owners: str | None) -> None:
        if (idle := self._idle_of_largest(*owners)) is None:
            raise TooManyRequests(
                f"{num_streams} replies with '{CONVERSATION}' are being made or read already: try again when one is "
                f"over, or leave the header out",
                code="too_many_streams",
                retry_after_s=5.0,
            )
        self.forget(idle)

    def _idle_of_largest(self, *owners: str | None) -> KeptStream | None:
        """Return the oldest idle stream of the key whose idle ones are the largest; of `owners` alone if given."""
        sizes: dict[str | None, tuple[int, int]] = {}
        for stream in self._streams.values():
            if stream.is_idle and (not owners or stream.owner in owners):
                num_bytes, count = sizes.get(stream.owner, (0, 0))
                sizes[stream.owner] = num_bytes + stream.num_bytes, count + 1
        if not sizes:
            return None
        largest = max(sizes, key=lambda owner: sizes[owner])
        return next(stream for stream in self._of(largest) if stream.is_idle)

    def _of(self, owner: str | None) -> Iterator[KeptStream]:
        return (stream for stream in self._streams.values() if stream.owner == owner)

    def _drop_unread(self, stream: KeptStream) -> None:
        """Nothing is left of it if nobody can read it."""
        if not stream.is_kept and not stream.readers:
            self._drop(stream, stream.num_bytes)
            self._forgotten.discard(stream)

    def _drop(self, stream: KeptStream, num_bytes: int) -> None:
        before = stream.num_bytes
        stream.drop(num_bytes)
        self._num_bytes -= before - stream.num_bytes


def _digest(owner: str | None, conversation: str) -> bytes:
    """Return what a stream is found by: how long the look-up takes tells nothing of ids that are nearly right."""
    return hashlib.sha256(f"{owner or ''}\n{conversation}".encode()).digest()
