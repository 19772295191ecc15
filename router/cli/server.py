"""How commands talk to a running server: where it is, with which key, and what its refusals mean at a terminal.

Owns addresses, the key, and turning every failure into one message and one exit code. Must not print anything.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import click

from router.cli.formats import as_commands
from router.cli.output import Command, CommandFailed, ExitCode
from router.cli.shapes import no_corral
from router.cli.stream_lines import split_lines
from router.cli.transport import CA_VARIABLE, CERT_VARIABLE, make_client
from router.cli.transport import KEY_VARIABLE as CERT_KEY_VARIABLE
from router.listen import UNIX, admin_path

if TYPE_CHECKING:
    import httpx

URL_VARIABLE = "CORRAL_URL"
KEY_VARIABLE = "CORRAL_API_KEY"

MODEL_NOT_FOUND = "model_not_found"
"""The server's code for a name that it does not know."""

WRONG_KEYS = "too_many_wrong_keys"
"""Its code for a wrong key that is not the first one."""

_CONNECT_S = 5.0
_ANSWER_S = 60.0
_WITHOUT_SCHEME = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):\d+(/|$)|[\d.]+(/|$)|localhost(/|$)")
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


def server_option(command: Command) -> Command:
    """The command has an option `--url`; it gets a `Server` from `open_server(url)`."""
    option = click.option(
        "--url",
        envvar=URL_VARIABLE,
        help=f"Address of the server (default: {URL_VARIABLE}, or http://127.0.0.1:8080). "
        f"The API key comes from {KEY_VARIABLE}.",
    )
    return option(command)


class Refused(CommandFailed):
    """The server has answered, and said no."""

    def __init__(self, message: str, code: ExitCode, *, status: int, reason: str, body: Any) -> None:
        """`reason` is the server's own code for it, "" where it has none; `body` what it sent, parsed if it is JSON."""
        super().__init__(message, code)
        self.status = status
        self.reason = reason
        self.body = body

    @property
    def is_unknown_route(self) -> bool:
        """Whether the server does not know what it was asked for: it is older, or no Corral."""
        return self.status == 404 and self.exit_code != ExitCode.NO_SUCH_MODEL


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: its name, and its data as JSON."""

    name: str
    data: Any


class Server:
    """A running server. To be closed, best by `with open_server(url) as server`."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self.url = url
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **query: Any) -> Any:
        """Return the answer's JSON. Raises: CommandFailed."""
        return self.send("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer's JSON. Raises: CommandFailed."""
        return self.send("POST", path, body=body)

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        max_silence_s: float | None = _ANSWER_S,
    ) -> Any:
        """Return the answer's JSON, for which `max_silence_s` may pass (None = any time). Raises: CommandFailed."""
        with self._answers(), self._open(method, path, query, body, max_silence_s) as response:
            return _parsed(response.read())

    @contextmanager
    def lines(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        max_silence_s: float | None = None,
    ) -> Iterator[Iterator[str]]:
        """Give the lines of an answer as they come, without their ends; for `max_silence_s` none need come.

        Raises: CommandFailed, also while reading.
        """
        with self._pieces(method, path, query, body, max_silence_s, "text/plain", "text") as pieces:
            yield split_lines(pieces)

    @contextmanager
    def events(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        max_silence_s: float | None = None,
    ) -> Iterator[Iterator[Event]]:
        """Give server-sent events as they come; `[DONE]` ends them. Raises: CommandFailed, also while reading."""
        with self._pieces(method, path, query, body, max_silence_s, "text/event-stream", "events") as pieces:
            yield read_events(split_lines(pieces))

    @contextmanager
    def _pieces(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        max_silence_s: float | None,
        content_type: str,
        words: str,
    ) -> Iterator[Iterator[bytes]]:
        """Give the bytes of an answer as they come. Raises: CommandFailed, for a page of somebody else's, too."""
        with self._answers(), self._open(method, path, query, body, max_silence_s) as response:
            if not response.headers.get("content-type", "").startswith(content_type):
                raise no_corral(self.url, f"it sent something else than {words}")
            yield response.iter_bytes()

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        max_silence_s: float | None = None,
    ) -> Iterator[httpx.Response]:
        import httpx

        timeout = httpx.Timeout(max_silence_s, connect=_CONNECT_S)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with self._client.stream(method, path, params=given, json=body, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                if response.is_redirect:
                    raise _redirected(self.url, response.headers.get("location", ""))
                raise refusal_of(self.url, response.status_code, response.text)
            yield response

    @contextmanager
    def _answers(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            raise CommandFailed(_nobody_there(self.url, str(error)), ExitCode.NO_SERVER) from None
        except httpx.TimeoutException:
            text = f"the server at {self.url} does not answer in time; its log may tell why"
            raise CommandFailed(text, ExitCode.NO_SERVER) from None
        except httpx.DecodingError as error:
            text = f"the answer of {self.url} cannot be read: {error}; does something between change it?"
            raise CommandFailed(text, ExitCode.NO_SERVER) from None
        except httpx.TransportError as error:
            raise CommandFailed(_dropped(self.url, str(error) or type(error).__name__), ExitCode.NO_SERVER) from None
        except _NoJson:
            raise no_corral(self.url, "it sent something else than JSON") from None
        except UnicodeEncodeError as error:  # bytes of an argument that are no text
            text = f"{error.object!r} has bytes in it that are no UTF-8, so it cannot be sent"
            raise CommandFailed(text, ExitCode.USAGE) from None


def open_server(url: str | None = None) -> Server:
    """Return the server that `url`, `CORRAL_URL`, or else the settings of a server on this machine name.

    Raises: CommandFailed when the address is none.
    """
    import httpx

    address = (url or default_url()).strip()
    if not address.startswith(UNIX):
        address = address.rstrip("/").removesuffix("/v1")  # some clients want it with that
    if _WITHOUT_SCHEME.match(address):
        address = f"http://{address}"
    try:
        parsed = httpx.URL("http://localhost" if address.startswith(UNIX) else address)
    except httpx.InvalidURL as error:
        raise CommandFailed(f"{address!r} is no address of a server: {error}", ExitCode.USAGE) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        text = f"{address!r} is no address of a server; write it like http://127.0.0.1:8080"
        raise CommandFailed(text, ExitCode.USAGE)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise CommandFailed(f"{KEY_VARIABLE} has characters in it that no API key has", ExitCode.USAGE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        client = make_client(address, headers, os.environ)
    except (ImportError, ValueError, OSError) as error:  # a kind of proxy, a proxy's address, SSL_CERT_FILE
        why = f"{error.strerror} (SSL_CERT_FILE, SSL_CERT_DIR)" if isinstance(error, OSError) else str(error)
        text = f"{address} cannot be asked with the proxies and certificates that the environment names: {why}"
        raise CommandFailed(text, ExitCode.USAGE) from None
    shown = address if address.startswith(UNIX) else str(parsed.copy_with(username=None, password=None)).rstrip("/")
    return Server(shown, client)


class _NoJson(Exception):
    """What was sent cannot be read."""


def _parsed(text: str | bytes) -> Any:
    """Return a JSON value. Raises: _NoJson, also for one that is nested deeper, or has longer numbers, than can be."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _NoJson from None


def read_events(lines: Iterator[str]) -> Iterator[Event]:
    """Yield the events of a text/event-stream; comments are passed over. Source: the HTML standard, 9.2.6."""
    name = ""
    data: list[str] = []
    for line in lines:
        if not line:
            text = "\n".join(data)
            if text == "[DONE]":
                return
            if data:
                yield Event(name or "message", _parsed(text))
            name, data = "", []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)


def refusal_of(url: str, status: int, text: str) -> Refused:
    """Return the failure that a refusal of the server means; `text` is its body."""
    try:
        body = _parsed(text)
    except _NoJson:
        body = text
    message, reason = _told(body)
    message = as_commands(message)
    code = ExitCode.FAILED
    if status == 401 or reason == WRONG_KEYS:
        said = "the key in CORRAL_API_KEY is not one of its keys" if os.environ.get(KEY_VARIABLE) else "it wants a key"
        message, code = f"{url} refuses: {said}; put a valid one into {KEY_VARIABLE}", ExitCode.REFUSED
    elif status == 403:
        message, code = message or f"{url} refuses this", ExitCode.REFUSED
    elif reason == MODEL_NOT_FOUND:
        code = ExitCode.NO_SUCH_MODEL
    elif not message and status in (404, 405):
        message = f"what answers at {url} is no Corral, or an older one: it does not know this request"
    message = message or f"{url} answered with status {status} and no reason"
    return Refused(message, code, status=status, reason=reason, body=body)


def _redirected(url: str, target: str) -> CommandFailed:
    text = f"{url} sends every request on to {target or 'another address'}: put that address into {URL_VARIABLE}"
    return CommandFailed(text, ExitCode.NO_SERVER)


def _told(body: Any) -> tuple[str, str]:
    """Return the message and the code of an error, "" where there is none."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return "", ""
    code = error.get("code")
    if code == 404 and error.get("param") == "model":  # llama-server's form, which has the status as the code
        code = MODEL_NOT_FOUND
    return str(error.get("message") or ""), str(code or "")


def _nobody_there(url: str, why: str) -> str:
    """Return why there is no connection: most often because there is no server."""
    if "CERTIFICATE" in why:
        return (
            f"the certificate of {url} cannot be verified ({why}). If it is self-signed or of an authority of "
            f"your own, name the file with its certificate in {CA_VARIABLE} (or SSL_CERT_FILE)"
        )
    told = "" if "refused" in why or not why else f" ({why})"
    return (
        f"no server answers at {url}{told}. Start one with `corral serve`, or say where it is: "
        f"{URL_VARIABLE}=http://HOST:PORT or --url"
    )


def _dropped(url: str, why: str) -> str:
    """Return what a connection that the server has closed may mean: at a server with TLS, most often one of two."""
    text = f"the connection to {url} broke: {why.strip().removesuffix('.')}; is the server still there?"
    if url.startswith("https:"):
        text += f" If it asks for a client's certificate: name yours in {CERT_VARIABLE} and {CERT_KEY_VARIABLE}"
    elif url.startswith("http:"):
        text += f" If it speaks TLS, say so: {URL_VARIABLE}=https://… (and {CERT_VARIABLE} and {CERT_KEY_VARIABLE}"
        text += " if it asks for a client's certificate)"
    return text


def default_url() -> str:
    """Return where `corral serve` listens with the same environment."""
    own = os.environ.get("CORRAL_ADMIN_SOCKET", "").strip()
    if (path := admin_path(own)) is not None:
        return f"{UNIX}{path}"
    scheme = "https" if os.environ.get("CORRAL_TLS_CERT", "").strip() else "http"
    if own:
        return f"{scheme}://{own}"
    host = os.environ.get("CORRAL_HOST", "").strip() or "127.0.0.1"
    port = os.environ.get("CORRAL_PORT", "").strip() or "8080"
    if host in _ANY_ADDRESS:
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
