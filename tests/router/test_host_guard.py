"""A page of somebody else cannot use a server that trusts this machine."""

from __future__ import annotations

import pytest

from router.errors import Forbidden
from router.host_guard import HostGuard, is_loopback

LOCAL = HostGuard(host="127.0.0.1", has_keys=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", "localhost.example.com", ""])
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LocalHost:1", None])
def test_own_names_pass(host: str | None) -> None:
    LOCAL.check(host, None)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[::2]:8080"])
def test_foreign_host_is_refused_with_what_to_set(host: str) -> None:
    with pytest.raises(Forbidden, match="CORRAL_ALLOWED_HOSTS"):
        LOCAL.check(host, None)


@pytest.mark.parametrize("origin", ["http://localhost:8080", "https://localhost:8080", "HTTP://LOCALHOST:8080"])
def test_own_page_passes(origin: str) -> None:
    LOCAL.check("localhost:8080", origin)


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://localhost:3000",
        "chrome-extension://abc",
        "http://localhost:8080.evil",
    ],
)
def test_foreign_page_is_refused_with_what_to_set(origin: str) -> None:
    with pytest.raises(Forbidden, match="CORRAL_ALLOWED_HOSTS"):
        LOCAL.check("localhost:8080", origin)


def test_configured_names_and_origins_pass() -> None:
    guard = HostGuard(
        host="127.0.0.1",
        allowed=("llm.lan", "http://localhost:3000/", "chrome-extension://abc", "ui.lan:9000"),
        has_keys=False,
    )
    guard.check("LLM.lan:8080", None)
    guard.check("localhost:8080", "http://localhost:3000")
    guard.check("localhost:8080", "chrome-extension://abc")
    guard.check("localhost:8080", "https://llm.lan")
    guard.check("ui.lan:9000", "http://ui.lan:9000")
    with pytest.raises(Forbidden):
        guard.check("ui.lan:9001", None)


def test_star_allows_everything() -> None:
    HostGuard(host="127.0.0.1", allowed=("*",), has_keys=False).check("evil.example", "http://evil.example")


def test_public_address_with_keys_is_reached_by_any_name() -> None:
    HostGuard(host="0.0.0.0", has_keys=True).check("llm.example.com", "https://app.example.com")


def test_public_address_without_keys_still_refuses_foreign_pages() -> None:
    guard = HostGuard(host="0.0.0.0", has_keys=False)
    guard.check("llm.lan:8080", None)
    with pytest.raises(Forbidden):
        guard.check("llm.lan:8080", "http://evil.example")
