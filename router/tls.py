"""The certificate with which the server speaks HTTPS, and how it is exchanged while the server runs.

Owns reading the files, the test that clients could accept what is in them, and the words for what is wrong. Must not
open sockets: whoever accepts a connection takes the context of that moment.

A connection keeps the certificate that it was opened with. When the files cannot be used, the one before stays.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import NoReturn

from router.own_thread import in_own_thread
from router.watcher import Sight, look

_log = logging.getLogger(__name__)

_MAX_TURNS = 20
"""A handshake takes two or three from each side."""
_EXPIRED = 10
_NOT_YET_VALID = 9
"""Source: OpenSSL, X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""
_SELF_CHECK_NAME = "corral.invalid"


class TlsProblem(Exception):
    """The files cannot be used; the message names the one and says what to do."""


class TlsFiles:
    """Reads the files again whenever it is told to, or when they change (it can be watched)."""

    def __init__(self, certificate: Path, key: Path | None = None, client_ca: Path | None = None) -> None:
        """`key`: None = it stands in the file of the certificate. `client_ca`: who signs the clients that may connect.

        Raises: TlsProblem.
        """
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self.files = tuple(path for path in (certificate, key, client_ca) if path is not None)
        self._turn = asyncio.Lock()
        self.taken: Sight = look(self.files)
        self.context = self._load()
        """For the next connection."""

    async def take_edits(self) -> None:
        """The next connections get what the files hold now; the log tells which, or why the old ones stay."""
        async with self._turn:
            try:
                self.context = await in_own_thread(self._read_again, "certificate")
            except TlsProblem as problem:
                _log.error("TLS goes on with the certificate that it had: %s", problem)
            else:
                _log.info("TLS: new connections get the certificate that is in %s now", self._certificate)

    def _read_again(self) -> ssl.SSLContext:
        self.taken = look(self.files)
        return self._load()

    def _load(self) -> ssl.SSLContext:
        for path in self.files:
            _check_readable(path)
        context = self._with_certificate()
        if (warning := _what_clients_say(context, self._certificate)) is not None:
            _log.warning("the certificate in %s %s", self._certificate, warning)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(cafile=self._client_ca)
            except (ssl.SSLError, OSError):
                raise TlsProblem(
                    f"{self._client_ca} (CORRAL_TLS_CLIENT_CA) holds no certificate in PEM form of an authority that "
                    f"signs clients"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _with_certificate(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        key = self._key or self._certificate
        try:
            context.load_cert_chain(self._certificate, self._key, password=_refuse_password)
        except _Encrypted:
            raise TlsProblem(
                f"the private key in {key} is protected by a password; store it without one, readable for the "
                f"server's user alone (openssl pkey -in {key} -out plain.pem)"
            ) from None
        except (ssl.SSLError, OSError) as error:
            raise TlsProblem(_explain(error, self._certificate, key)) from None
        return context


class _Encrypted(Exception):
    """The key asks for a password."""


def _refuse_password() -> NoReturn:
    """OpenSSL would ask for it on the terminal, and a server has none."""
    raise _Encrypted


def _check_readable(path: Path) -> None:
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would block
        raise TlsProblem(f"{path} is no regular file; name a file in PEM form in its place")
    try:
        with path.open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TlsProblem(
            f"{path} cannot be read ({why}); CORRAL_TLS_CERT, CORRAL_TLS_KEY and CORRAL_TLS_CLIENT_CA are to name "
            f"files in PEM form that the server's user may read"
        ) from None


def _explain(error: OSError, certificate: Path, key: Path) -> str:
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return (
            f"the private key in {key} is not that of the first certificate in {certificate}; name two that belong "
            f"together"
        )
    if key == certificate:
        return (
            f"{certificate} does not hold both a certificate and its private key in PEM form; where the key has a "
            f"file of its own, name it in CORRAL_TLS_KEY"
        )
    if not _holds(certificate, b"CERTIFICATE"):
        return f"{certificate} (CORRAL_TLS_CERT) holds no certificate in PEM form"
    if not _holds(key, b"PRIVATE KEY"):
        return f"{key} (CORRAL_TLS_KEY) holds no private key in PEM form"
    return f"{certificate} and {key} cannot be used for TLS: {reason.lower().replace('_', ' ') or error}"


def _holds(path: Path, what: bytes) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return any(line.startswith(b"-----BEGIN ") and what in line for line in content.splitlines())


# --- would a client accept it? ------------------------------------------------------------------------------


def _what_clients_say(server: ssl.SSLContext, certificate: Path) -> str | None:
    """Return what a client that trusts exactly this certificate holds against it; None = nothing.

    A handshake in memory: only OpenSSL itself knows what it will refuse.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cafile=certificate)
        _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return "has expired: clients refuse it. Renew it; it is taken up without a restart"
        if error.verify_code == _NOT_YET_VALID:
            return "is not valid yet: clients refuse it. Is this machine's clock right?"
        return f"is refused by clients: {error.verify_message}"
    except (ssl.SSLError, OSError) as error:
        return f"may be refused by clients: {getattr(error, 'reason', None) or error}"
    return None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """The two have agreed. Raises: ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=_SELF_CHECK_NAME),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(sides)
    for _ in range(_MAX_TURNS):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return
    raise ssl.SSLError("the handshake does not come to an end")
