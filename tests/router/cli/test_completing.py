"""A shell offers the models of the running server, and those of the configuration where no server answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from router.cli import completing, main
from tests.fakes.corral_http import FakeCorral


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.yaml").write_text("models:\n  here: pkg:a/b.gguf\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(completing, "ANSWER_S", 30.0)  # a busy machine must not decide which list is offered
    return tmp_path


def completed(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    shell = BashComplete(main, {}, "corral", "_CORRAL_COMPLETE")
    return [item.value for item in shell.get_completions(*shell.get_completion_args())]


@pytest.mark.parametrize("command", ["load", "unload", "pin", "unpin", "chat", "logs", "bench"])
def test_models_of_the_server_are_offered(fake: FakeCorral, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    fake.answers("GET", "/v1/models", {"data": [{"id": "chat"}, {"id": "coder"}, {"id": "gpt-*"}]})
    assert completed(f"corral {command} ", monkeypatch) == ["chat", "coder"]
    assert completed(f"corral {command} co", monkeypatch) == ["coder"]


def test_key_is_sent(fake: FakeCorral, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_API_KEY", "a-key")
    fake.answers("GET", "/v1/models", {"data": []})
    assert completed("corral load ", monkeypatch) == []
    assert fake.asked[-1].headers.get("Authorization") == "Bearer a-key"


@pytest.mark.parametrize("reply", [[], {"data": 3}, "hello"])
def test_configuration_is_offered_where_the_answer_is_no_list(
    fake: FakeCorral, monkeypatch: pytest.MonkeyPatch, reply: object
) -> None:
    fake.answers("GET", "/v1/models", reply)
    assert completed("corral load ", monkeypatch) == ["here"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[", "ftp://x"])
def test_configuration_is_offered_where_nobody_answers(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("CORRAL_URL", url)
    assert completed("corral load ", monkeypatch) == ["here"]


def test_address_for_openai_clients_does_too(fake: FakeCorral, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", f"{fake.url}/v1/")
    fake.answers("GET", "/v1/models", {"data": [{"id": "chat"}]})
    assert completed("corral load ", monkeypatch) == ["chat"]
