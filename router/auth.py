"""API keys: which there are, what each may do, and whether a request carries one.

Owns reading keys from settings, files and the environment, and comparing them. Keys are kept as SHA-256 digests
only, and a refusal never tells which part was wrong. Must not know routes: `app.py` asks for a scope.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import SecretStr

from router.api_keys import KeyLimits, KeySpec
from router.errors import Forbidden, Unauthorized
from router.settings import RouterSettings


class Scope(StrEnum):
    """What a key may do; `ADMIN` includes the others."""

    INFERENCE = "inference"
    METRICS = "metrics"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)
_MAX_KEY_FILE_BYTES = 2**20
_HASHED = "sha256:"
"""Begins a line of a file of keys that holds a sum in place of the key."""


class KeyProblem(Exception):
    """A configured key cannot be read; the message tells which and what to set."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Who sent the request and what they may do."""

    key_id: str | None
    """None when the server has no keys at all."""
    scopes: frozenset[Scope]
    priority: int = 0
    """Added to that of each of its requests."""
    limits: KeyLimits = field(default_factory=KeyLimits)
    owner: str | None = field(default=None, compare=False, repr=False)
    """Tells apart the keys themselves, those of one id as well: a digest. None = there are no keys."""

    @property
    def usable(self) -> tuple[str, ...]:
        """Names and patterns of the models that it may use; () = all."""
        return () if Scope.ADMIN in self.scopes else self.limits.models

    @property
    def visible(self) -> tuple[str, ...]:
        """Names and patterns of the models that it may watch; () = all."""
        return () if Scope.METRICS in self.scopes else self.usable

    @property
    def tells_folders(self) -> bool:
        """Whether it is told where on the machine files lie, and not their names alone."""
        return Scope.ADMIN in self.scopes

    def require(self, *scopes: Scope) -> None:
        """Return if one of `scopes` is granted. Raises: Forbidden, naming what is missing."""
        if Scope.ADMIN in self.scopes or any(scope in self.scopes for scope in scopes):
            return
        wanted = " or ".join(f"`{scope}`" for scope in scopes)
        raise Forbidden(
            f"this API key lacks the scope {wanted}: use a key that has it, or add the scope to the key in the "
            f"server's configuration"
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    grant: Grant


class KeyRing:
    """The keys of one server. Empty = no key is asked for.

    Handlers hold the ring, so that a new configuration changes the keys inside it.
    """

    def __init__(self, entries: Iterable[tuple[bytes, Grant]] = ()) -> None:
        """Take the SHA-256 digest of every key, and what the key may do."""
        self._entries = tuple(_Entry(digest, replace(grant, owner=digest.hex())) for digest, grant in entries)

    @property
    def is_empty(self) -> bool:
        """True when anybody who reaches the server may do everything."""
        return not self._entries

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What all keys may do, in their order; keys of one id may do the same."""
        return tuple(entry.grant for entry in self._entries)

    def adopt(self, other: KeyRing) -> None:
        """From now on the keys are those of `other`, for the next request as for all later ones."""
        self._entries = other._entries

    def is_same_as(self, other: KeyRing) -> bool:
        """Return whether both hold the same keys with the same rights."""
        return self._entries == other._entries

    def still_grants(self, grant: Grant) -> bool:
        """Return whether the key that `grant` came with may still do all that it might."""
        if self.is_empty:
            return True
        owned = (entry.grant for entry in self._entries if entry.grant.owner == grant.owner)
        return any(grant.scopes <= one.scopes and _sees_as_much(one, grant) for one in owned)

    def find(self, headers: Mapping[str, str]) -> Grant | None:
        """Return what the sender of `headers` may do; None = there is no right key among them."""
        if self.is_empty:
            return Grant(None, ALL_SCOPES)
        found: Grant | None = None
        for candidate in _candidates(headers):
            digest = _digest(candidate)
            for entry in self._entries:  # all of them, always: the time must not tell which one is near
                if hmac.compare_digest(digest, entry.digest) and found is None:
                    found = entry.grant
        return found


def _sees_as_much(grant: Grant, other: Grant) -> bool:
    """Return whether `grant` opens every model that `other` does."""
    return not grant.visible or (bool(other.visible) and set(other.visible) <= set(grant.visible))


def carries_key(headers: Mapping[str, str]) -> bool:
    """Return whether there is something that is meant as a key."""
    return next(_candidates(headers), None) is not None


def unauthorized() -> Unauthorized:
    """Return the one answer to everybody without a right key."""
    return Unauthorized("a valid API key is required: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`")


def load_key_ring(settings: RouterSettings, keys: Iterable[KeySpec], environ: Mapping[str, str]) -> KeyRing:
    """Return the keys of the settings, of the key file and of `models.yaml` together.

    Raises: KeyProblem when one is missing or unreadable: the server must not start more open than was meant.
    """
    entries: list[tuple[bytes, Grant]] = []
    for scope, prefix, secrets in (
        (Scope.INFERENCE, "env", settings.api_keys),
        (Scope.METRICS, "metrics", settings.metrics_keys),
        (Scope.ADMIN, "admin", settings.admin_keys),
    ):
        for number, secret in enumerate(secrets, 1):
            entries.append((_digest(_plain(secret)), Grant(f"{prefix}-{number}", frozenset({scope}))))
    if settings.api_key_file is not None:
        lines = list(_keys_in(settings.api_key_file, "--api-key-file or CORRAL_API_KEY_FILE"))
        entries += [
            (digest, Grant(f"file-{number}", frozenset({Scope.INFERENCE}))) for number, digest in enumerate(lines, 1)
        ]
    for spec in keys:
        scopes = frozenset(Scope(scope) for scope in spec.scopes)
        grant = Grant(spec.id, scopes, spec.priority, spec.limits)
        entries += [(digest, grant) for digest in _spec_digests(spec, environ)]
    return KeyRing(entries)


def key_problem(spec: KeySpec, environ: Mapping[str, str]) -> str | None:
    """Return why a key of `models.yaml` cannot be read; None = it can."""
    try:
        _spec_digests(spec, environ)
    except KeyProblem as problem:
        return str(problem).removeprefix(f"keys.{spec.id}: ")
    return None


def _spec_digests(spec: KeySpec, environ: Mapping[str, str]) -> list[bytes]:
    where = f"keys.{spec.id}"
    if spec.sha256 is not None:
        return [bytes.fromhex(spec.sha256)]
    if spec.env is not None:
        key = environ.get(spec.env, "").strip()
        if not key:
            raise KeyProblem(f"{where}: the environment variable {spec.env} is not set; put the key there")
        return [_digest(key)]
    if spec.file is not None:
        return list(_keys_in(spec.file, where, must_be_regular=True))
    raise KeyProblem(f"{where}: one of `env`, `file` or `sha256` must tell where the key is")


def _keys_in(path: Path, where: str, *, must_be_regular: bool = False) -> Iterator[bytes]:
    """Yield the digests of the keys in a file.

    `must_be_regular`: it is read whenever somebody asks, and a pipe would block that.
    """
    try:
        if must_be_regular and not path.expanduser().is_file() and path.expanduser().exists():
            raise KeyProblem(f"{where}: {path} is not a regular file")
        with path.expanduser().open("rb") as file:
            raw = file.read(_MAX_KEY_FILE_BYTES + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # RuntimeError: the home folder of a stranger
        reason = getattr(error, "strerror", None) or error
        raise KeyProblem(f"{where}: cannot read the keys in {path}: {reason}") from None
    if len(raw) > _MAX_KEY_FILE_BYTES:
        raise KeyProblem(f"{where}: {path} is larger than {_MAX_KEY_FILE_BYTES // 2**20} MiB: that is no file of keys")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not keys:
        raise KeyProblem(f"{where}: {path} has no key in it; write one key per line")
    for number, line in keys:
        try:
            yield _entry_digest(line)
        except ValueError:  # the line is not quoted, nor its error: it may be a key
            raise KeyProblem(
                f"{where}: line {number} of {path} begins with `{_HASHED}` and must go on with the 64 hexadecimal "
                f"digits of a SHA-256 sum; `corral keys new` makes such a line"
            ) from None


def _entry_digest(line: str) -> bytes:
    """Return the digest that one line of a file stands for. Raises: ValueError."""
    if not line.lower().startswith(_HASHED):
        return _digest(line)
    sum_ = line[len(_HASHED) :].strip()
    if re.fullmatch("[0-9a-fA-F]{64}", sum_) is None:
        raise ValueError
    return bytes.fromhex(sum_)


def _candidates(headers: Mapping[str, str]) -> Iterator[str]:
    scheme, _, value = headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        yield value.strip()
    if key := headers.get("x-api-key", "").strip():
        yield key


def _plain(secret: SecretStr) -> str:
    return secret.get_secret_value()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
