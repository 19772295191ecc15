"""What the operator sets outside `models.yaml`: environment variables `CORRAL_*`, overridden by the command line.

Owns names, types, ranges and defaults. Must not open files, read keys or look at the system: `serve.py` and
`auth.py` do that with what stands here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from router.cors import read_origin

if TYPE_CHECKING:
    from router.catalog import Catalog

ENV_PREFIX = "CORRAL_"
OF_COMMANDS = frozenset(
    {"CORRAL_FILE", "CORRAL_URL", "CORRAL_API_KEY"}
    | {"CORRAL_TLS_CA", "CORRAL_TLS_CLIENT_CERT", "CORRAL_TLS_CLIENT_KEY"}
)
"""What commands read themselves."""


class LogFormat(StrEnum):
    """How log lines look; `auto` is `text` on a terminal and `json` elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


LogLevel = Literal["debug", "info", "warning", "error"]


def _split_commas(value: Any) -> Any:
    """Return the parts of a comma-separated text, without blanks; other types pass."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _command(value: Any) -> Any:
    """Return the words of a command that is written as a JSON list; other types pass."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        raise ValueError('must be a JSON list of words, such as ["python3", "worker.py"]') from None


def _at_home(path: Path) -> Path:
    """Return the path with the folder that a `~` at its start stands for."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"begins with {path.parts[0]}, of which the system knows no home folder") from None


_Path = Annotated[Path, AfterValidator(_at_home)]
_Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_commas)]
_Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]
_Origins = Annotated[tuple[Annotated[str, AfterValidator(read_origin)], ...], NoDecode, BeforeValidator(_split_commas)]


class RouterSettings(BaseSettings):
    """The router's settings, checked. A field `x` is set by the environment variable `CORRAL_X`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65535)
    """0 = any free port; the start-up message tells which."""

    api_keys: _Secrets = ()
    """Keys that may run models (comma-separated)."""
    metrics_keys: _Secrets = ()
    """Keys that may watch: `/metrics`, `/status`, `/slots`, `/requests` and `/events`."""
    admin_keys: _Secrets = ()
    """Keys that may do everything, load and unload included."""
    api_key_file: _Path | None = None
    """A file with one key per line that may run models; `#` starts a comment line."""
    allow_unauthenticated: bool = False
    """Serve other addresses than loopback without any key."""
    allowed_hosts: _Names = ()
    """Further names in a `Host` header, and origins of pages that may send requests; `*` = any."""
    cors_origins: _Origins = ()
    """Origins of pages that may send requests and read the answers (CORS); `*` = any, which needs keys."""

    tls_cert: _Path | None = None
    """File with the server's certificate, and those between it and its authority, in PEM form; None = plain HTTP."""
    tls_key: _Path | None = None
    """File with its private key; None = the key stands in `tls_cert`."""
    tls_client_ca: _Path | None = None
    """File with the authorities that sign clients: only clients with a certificate of theirs may connect."""
    admin_socket: str | None = None
    """Where operators' requests are answered, and only there: the path of a Unix socket, or HOST:PORT."""

    max_connections: int | None = Field(None, ge=1)
    """Clients' connections that may be open; None = 10,000, or less where the system's limit of open files is low."""
    request_head_timeout_s: float = Field(30.0, ge=0, le=86400)
    """For a request's head to come, from the opening of a connection or its first byte; 0 = any time."""
    request_body_timeout_s: float = Field(60.0, ge=0, le=86400)
    """For a request's body to come; a long one gets a second more for each 16 KiB that have come. 0 = any time."""
    worker_sandbox: bool = True
    """Workers may write to few folders and open no TCP connections, where the kernel can enforce it (Linux)."""

    allow_config_edits: bool = False
    """Administrators may write `models.yaml` over HTTP. Its `hooks` are commands that this process runs."""

    cache: _Path | None = None
    """Folder for fetched models; None = `$XDG_CACHE_HOME/corral` or `~/.cache/corral`."""
    offline: bool = False
    """Never fetch a model; use what lies in the cache."""
    cores: int | None = Field(None, ge=1, le=4096)
    """CPU cores that all workers share; None = what the system grants."""

    log_level: Annotated[LogLevel, BeforeValidator(_lower)] = "info"
    log_format: Annotated[LogFormat, BeforeValidator(_lower)] = LogFormat.AUTO

    stream_open_after_s: float = Field(5.0, ge=0, le=3600)
    """A stream that has waited this long is opened, so that the client sees signs of life."""
    ping_interval_s: float = Field(10.0, gt=0, le=3600)
    """Between two comment lines in a silent stream."""
    max_client_stall_s: float = Field(60.0, ge=0)
    """A stream of which the client takes nothing for this long is cut off; 0 = never."""
    shutdown_drain_s: float = Field(25.0, ge=0, le=86400)
    """How long a stop waits for running requests. Less than the 30 s after which most supervisors kill."""
    max_body_memory_bytes: int | None = Field(None, ge=1)
    """Request bodies held at the same time, all together; None = 8 x `limits.max_body_bytes`."""

    responses_max_bytes: int = Field(256 * 2**20, ge=1)
    """Of responses that are kept for `previous_response_id`, all together."""
    responses_max_count: int = Field(10_000, ge=1)
    """So many of them."""
    responses_max_age_s: float = Field(86_400.0, gt=0, le=10**9)
    """One that was not used for so long is forgotten."""

    kept_streams_max_count: int = Field(256, ge=1, le=100_000)
    """Replies that are kept for clients whose connection was lost, all together; of one API key a quarter of them."""
    kept_streams_max_bytes: int = Field(64 * 2**20, ge=2**16)
    """Of all of them together."""
    kept_stream_max_bytes: int = Field(4 * 2**20, ge=2**16)
    """Of each one; the oldest bytes go first."""
    kept_stream_s: float = Field(300.0, ge=0, le=86400)
    """One that is complete is kept for so long."""
    detached_stream_s: float = Field(300.0, ge=0, le=86400)
    """One that nobody reads is generated on for so long."""

    check_cells: bool = False
    """Workers compare after every step what is recorded of each sequence with the KV cache, and end on a difference."""
    worker_command: Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(_command)] = None
    """Starts another program in place of the worker (a JSON list); for tests."""


_WORDS = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
}
"""Our words for kinds of pydantic's errors."""


class SettingsError(Exception):
    """Some settings are wrong; `problems` has one line for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def read_settings(**overrides: Any) -> RouterSettings:
    """Return the settings of the environment, with those `overrides` that are not None on top.

    Raises: SettingsError, naming the variable or the option of every wrong value.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return RouterSettings(**given)
    except ValidationError as error:
        raise SettingsError(_explain(error, given)) from None


def _explain(error: ValidationError, given: dict[str, Any]) -> list[str]:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        origin = f"--{name.replace('_', '-')}" if name in given else f"{ENV_PREFIX}{name.upper()}"
        lines.append(f"{origin}: {_words(problem['type'], problem['msg'])}")
    return lines


def _words(kind: str, message: str) -> str:
    """Return what is wrong with a value, without the value, which may be a secret."""
    if kind in _WORDS:
        return _WORDS[kind]
    return message.removeprefix("Value error, ").replace("Input should be", "must be").replace("String should", "must")


def unknown_variables(names: Iterable[str], catalog: Catalog) -> list[str]:
    """Return a warning for each `CORRAL_*` name that neither a setting, a command nor the configuration reads."""
    known = {f"{ENV_PREFIX}{field.upper()}" for field in RouterSettings.model_fields}
    expected = {*OF_COMMANDS, *(key.env for key in catalog.keys)}
    expected |= {spec.remote.key_env for spec in catalog.models.values() if spec.remote is not None}
    warnings = []
    for name in sorted(set(names) - known - expected):
        if name.startswith(ENV_PREFIX):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"the environment variable {name} is not a setting of Corral{hint}")
    return warnings
