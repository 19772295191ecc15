"""How commands reach a server: over HTTP, over HTTPS with certificates of one's own, or through a Unix socket.

Owns the variables that say so. Must not send requests.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from router.cli.output import CommandFailed, ExitCode
from router.listen import UNIX

if TYPE_CHECKING:
    import httpx

CA_VARIABLE = "CORRAL_TLS_CA"
CERT_VARIABLE = "CORRAL_TLS_CLIENT_CERT"
KEY_VARIABLE = "CORRAL_TLS_CLIENT_KEY"


def make_client(address: str, headers: Mapping[str, str], environ: Mapping[str, str]) -> httpx.Client:
    """Return a client whose requests go to `address`.

    Raises: CommandFailed when a certificate cannot be used; ValueError, OSError or ImportError for what the environment
    says of proxies.
    """
    import httpx

    if address.startswith(UNIX):
        through = httpx.HTTPTransport(uds=address.removeprefix(UNIX))
        return httpx.Client(base_url="http://localhost", headers=headers, transport=through, trust_env=False)
    url = httpx.URL(address)
    verify = _make_context(environ) if url.scheme == "https" else None
    # A proxy that the environment names is for other machines.
    return httpx.Client(
        base_url=address, headers=headers, trust_env=not _is_here(url.host), verify=True if verify is None else verify
    )


def _make_context(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return what is trusted and shown; None = what is usual. Raises: CommandFailed."""
    authority = environ.get(CA_VARIABLE, "").strip()
    certificate, key = environ.get(CERT_VARIABLE, "").strip(), environ.get(KEY_VARIABLE, "").strip()
    trusted = authority or environ.get("SSL_CERT_FILE", "").strip()
    if not trusted and not certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=trusted or None)
    except OSError as error:
        raise _unusable(CA_VARIABLE if authority else "SSL_CERT_FILE", trusted, error) from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None)
        except OSError as error:
            raise _unusable(CERT_VARIABLE, certificate, error) from None
    return context


def _unusable(variable: str, path: str, error: OSError) -> CommandFailed:
    why = "it holds no certificate with its key in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
    return CommandFailed(f"{variable}={path} cannot be used: {why or error}", ExitCode.USAGE)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
