"""Models of other servers in a models.yaml: what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.catalog import AliasSpec, ModelSpec, Remote, RequestRules
from tests.support.catalogs import parse, problems


def test_a_model_of_another_server_has_an_address_a_name_and_a_key() -> None:
    served = parse(
        "models:\n  big: {url: 'https://host/v1/', url_model: org/big, url_key_env: BIG_KEY, context: 32768,"
        " aliases: [gpt], description: d, tags: [t], request: {drop: [top_k]}, request_timeout_s: 5, max_queue: 6}\n"
    )
    assert served.models["big"] == ModelSpec(
        name="big",
        source="",
        base_dir=Path("/srv"),
        remote=Remote("https://host/v1", "org/big", "BIG_KEY"),
        context=32768,
        aliases={"gpt": AliasSpec("gpt")},
        description="d",
        tags=("t",),
        request=RequestRules(drop=("top_k",)),
        request_timeout_s=5,
        max_queue=6,
    )
    assert served.policies() == {}, "it is not the fleet's"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://host", "https://host/v1"),
        ("http://host:8080/", "http://host:8080/v1"),
        ("https://host/openai/v1//", "https://host/openai/v1"),
        ("http://[::1]:8080/v1", "http://[::1]:8080/v1"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(url: str, address: str) -> None:
    remote = parse(f"models: {{big: {{url: '{url}'}}}}").models["big"].remote
    assert remote == Remote(address, "big")


def test_a_model_of_another_server_takes_only_those_defaults_that_concern_requests() -> None:
    before = (
        "defaults: {slots: 2, pin: true, context: 4096, tags: [x], max_queue: 3, batch_size: 2, max_tokens: 4,"
        " hooks: {before_load: [a]}, request: {drop: [a]}}\n"
    )
    spec = parse(f"{before}models: {{big: {{url: 'https://host', request: {{drop: [b]}}}}}}").models["big"]
    assert spec == ModelSpec(
        name="big",
        source="",
        base_dir=Path("/srv"),
        remote=Remote("https://host/v1", "big"),
        tags=("x",),
        max_queue=3,
        request=RequestRules(drop=("a", "b")),
    )


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ("url: host:8080", "url", "must be an address such as `https://HOST/v1`"),
        ("url: 'ftp://host/v1'", "url", "must be an address such as"),
        ("url: 'https:///v1'", "url", "must be an address such as"),
        ("url: 'https://host:99999/v1'", "url", "is not the address of a server"),
        ("url: 'https://host:0/v1'", "url", "must be an address such as"),
        ("url: 'https://a b/v1'", "url", "must be an address such as"),
        ("url: 'https://host/v1?key=1'", "url", "without `?` and `#`"),
        ("url: 'https://host/v1#top'", "url", "without `?` and `#`"),
        ("url: 'https://host/v1/chat/completions'", "url", "leave `/chat/completions` out"),
        ("url: 7", "url", "must be text"),
        ("url: 'https://host/v1'\nslots: 4", "slots", "is on another one (`url`); it may have `url`"),
        ("url: 'https://host/v1'\nloras: {a: a.gguf}", "loras", "is on another one (`url`)"),
        ("url: 'https://host/v1'\nmax_tokens: 5", "max_tokens", "write `request: {force: {max_tokens: N}}`"),
        ("url: 'https://host/v1'\nhooks: {}", "hooks", "is on another one (`url`)"),
        ("url: 'https://host/v1'\naliases: {x: {lora: y}}", "aliases.x.lora", "has no adapters here"),
    ],
)
def test_a_model_of_another_server_needs_an_address_and_nothing_of_a_worker(options: str, key: str, words: str) -> None:
    lines = "".join(f"    {line}\n" for line in options.splitlines())
    found = problems(f"models:\n  m:\n{lines}")
    assert list(found) == [f"models.m.{key}"]
    assert words in found[f"models.m.{key}"]


def test_a_password_in_an_address_is_refused_and_never_repeated() -> None:
    (message,) = problems("models: {a: {url: 'https://me:sk-secret@host/v1'}}").values()
    assert "`url_key_env`" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "secret", ["models: {a: {url: 'https://h/v1', url_key_env: sk-very-secret}}", "models: {a: {api_key: sk-secret}}"]
)
def test_a_key_of_another_server_in_plain_text_is_never_repeated(secret: str) -> None:
    assert not any("secret" in message for message in problems(secret).values())
