"""Who starts the server at a terminal is told all that is needed to use it, and what cannot be used."""

from __future__ import annotations

from typing import Any

from router.catalog import AliasSpec
from router.greeting import greet
from tests.support.http_side import make_catalog, make_spec

URL = "http://127.0.0.1:8080"


def greeting(*specs: Any, **more: Any) -> str:
    usual: dict[str, Any] = {"version": "1.2", "url": URL, "reach": "", "problems": {}, "has_keys": False}
    return greet(make_catalog(*specs), **(usual | {"edits": "Edits of models.yaml are picked up."} | more))


def test_greeting_tells_what_is_served_and_every_clients_address() -> None:
    lines = greeting(make_spec("smol", aliases={"gpt": AliasSpec("gpt")}), make_spec("gem")).splitlines()
    assert lines[:5] == [f"Corral 1.2 serves 2 models at {URL}", "", "  smol  also called gpt", "  gem", ""]
    assert (
        lines[5]
        == f"OpenAI's clients use {URL}/v1 as their base URL; Anthropic's, Ollama's and llama-server's use {URL}"
    )
    assert lines[6] == f"All routes, to read and to try: {URL}/docs"
    assert lines[-1] == "Edits of models.yaml are picked up. Ctrl-C stops the server."


def test_models_that_cannot_be_used_are_marked_and_not_proposed() -> None:
    text = greeting(make_spec("a", aliases={"b": AliasSpec("b")}), make_spec("gem"), problems={"a": "no such file"})
    assert f"serves 2 models, 1 of them unavailable, at {URL}" in text
    assert "  a    unavailable: no such file; also called b\n" in text
    assert '"model": "gem"' in text
    assert "Try it" not in greeting(make_spec("a"), problems={"a": "no such file"})


def test_operators_are_told_their_address_where_they_have_one() -> None:
    assert "CORRAL_URL=unix:/run/corral/admin.sock" in greeting(admin_url="unix:/run/corral/admin.sock")
    assert "CORRAL_URL" not in greeting()


def test_key_and_reach_are_told_where_there_are_any() -> None:
    assert "Bearer" not in greeting()
    text = greeting(has_keys=True, reach="on all addresses", edits=None)
    assert "Authorization: Bearer KEY" in text
    assert f"at {URL}, on all addresses\n" in text
    assert text.endswith("\n\nCtrl-C stops the server.\n")
