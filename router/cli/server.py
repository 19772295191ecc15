"""How commands talk to a running server: where it is, with which key, and what its refusals mean at a terminal.

Owns addresses, the key, and turning every failure into one message and one exit code. Must not print anything.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import click

from router.cli.output import Command, CommandFailed, ExitCode

if TYPE_CHECKING:
    import httpx

URL_VARIABLE = "CORRAL_URL"
KEY_VARIABLE = "CORRAL_API_KEY"

_CONNECT_S = 5.0
_ANSWER_S = 60.0
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
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the answer's JSON. Raises: CommandFailed."""
        with self._answers(), self._open(method, path, query, body) as response:
            return json.loads(response.read())

    @contextmanager
    def lines(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> Iterator[Iterator[str]]:
        """Give the lines of an answer as they come, without their ends. Raises: CommandFailed, also while reading."""
        with self._answers(), self._open(method, path, query, body, is_endless=True) as response:
            yield response.iter_lines()

    @contextmanager
    def events(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> Iterator[Iterator[Event]]:
        """Give server-sent events as they come; `[DONE]` ends them. Raises: CommandFailed, also while reading."""
        with self.lines(method, path, query=query, body=body) as lines:
            yield read_events(lines)

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        *,
        is_endless: bool = False,
    ) -> Iterator[httpx.Response]:
        import httpx

        timeout = httpx.Timeout(None if is_endless else _ANSWER_S, connect=_CONNECT_S)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with self._client.stream(method, path, params=given, json=body, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                raise refusal_of(self.url, response.status_code, response.text)
            yield response

    @contextmanager
    def _answers(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.ConnectError:
            raise CommandFailed(_nobody_there(self.url), ExitCode.NO_SERVER) from None
        except httpx.TimeoutException:
            text = f"the server at {self.url} does not answer in time; its log may tell why"
            raise CommandFailed(text, ExitCode.NO_SERVER) from None
        except httpx.TransportError as error:
            text = f"the connection to {self.url} broke: {error or type(error).__name__}; is the server still there?"
            raise CommandFailed(text, ExitCode.NO_SERVER) from None
        except json.JSONDecodeError:
            text = f"what answers at {self.url} is no Corral: it sent something else than JSON"
            raise CommandFailed(text, ExitCode.NO_SERVER) from None


def open_server(url: str | None = None) -> Server:
    """Return the server that `url`, `CORRAL_URL`, or else the settings of a server on this machine name.

    Raises: CommandFailed when the address is none.
    """
    import httpx

    address = (url or _default_url()).rstrip("/")
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise CommandFailed(f"{address!r} is no address of a server: {error}", ExitCode.USAGE) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        text = f"{address!r} is no address of a server; write it like http://127.0.0.1:8080"
        raise CommandFailed(text, ExitCode.USAGE)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # A proxy that the environment names is for other machines.
    client = httpx.Client(base_url=address, headers=headers, trust_env=not _is_here(parsed.host))
    return Server(address, client)


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
                yield Event(name or "message", json.loads(text))
            name, data = "", []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)


def refusal_of(url: str, status: int, text: str) -> CommandFailed:
    """Return the failure that a refusal of the server means; `text` is its body."""
    message, code = _told(text)
    if status == 401:
        said = "the key in CORRAL_API_KEY is not one of its keys" if os.environ.get(KEY_VARIABLE) else "it wants a key"
        return CommandFailed(f"{url} refuses: {said}; put a valid one into {KEY_VARIABLE}", ExitCode.REFUSED)
    if status == 403:
        return CommandFailed(message or f"{url} refuses this", ExitCode.REFUSED)
    if code == "model_not_found":
        return CommandFailed(message, ExitCode.NO_SUCH_MODEL)
    if not message and status == 404:
        return CommandFailed(f"what answers at {url} is no Corral, or an older one: it does not know this request")
    return CommandFailed(message or f"{url} answered with status {status} and no reason")


def _told(text: str) -> tuple[str, str]:
    """Return the message and the code of an error, "" where there is none."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"]), str(error.get("code") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def _nobody_there(url: str) -> str:
    return (
        f"no server answers at {url}. Start one with `corral serve`, or say where it is: "
        f"{URL_VARIABLE}=http://HOST:PORT or --url"
    )


def _default_url() -> str:
    """Return where `corral serve` listens with the same environment."""
    host = os.environ.get("CORRAL_HOST", "").strip() or "127.0.0.1"
    port = os.environ.get("CORRAL_PORT", "").strip() or "8080"
    if host in _ANY_ADDRESS:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
