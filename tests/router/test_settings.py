"""Settings come from the environment and the command line; wrong ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.catalog_parser import read_catalog
from router.settings import LogFormat, SettingsError, read_settings, unknown_variables


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("CORRAL_"):
            monkeypatch.delenv(name)


def test_defaults_listen_on_this_machine_only() -> None:
    settings = read_settings()
    assert (settings.host, settings.port, settings.api_keys) == ("127.0.0.1", 8080, ())
    assert (settings.stream_open_after_s, settings.ping_interval_s) == (5.0, 10.0)
    assert not settings.allow_unauthenticated


def test_environment_sets_every_kind_of_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PORT": "9000",
        "API_KEYS": "a, b ,,",
        "ALLOWED_HOSTS": "x.lan,y.lan",
        "API_KEY_FILE": "/keys",
        "LOG_LEVEL": "DEBUG",
        "LOG_FORMAT": "Json",
        "OFFLINE": "1",
        "PING_INTERVAL_S": "2.5",
        "WORKER_COMMAND": '["python", "-c", "a, b"]',
    }.items():
        monkeypatch.setenv(f"CORRAL_{name}", value)
    settings = read_settings()
    assert settings.port == 9000
    assert [key.get_secret_value() for key in settings.api_keys] == ["a", "b"]
    assert settings.allowed_hosts == ("x.lan", "y.lan")
    assert settings.api_key_file == Path("/keys")
    assert (settings.log_level, settings.log_format) == ("debug", LogFormat.JSON)
    assert settings.offline
    assert settings.ping_interval_s == 2.5
    assert settings.worker_command == ("python", "-c", "a, b")


def test_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PORT", "9000")
    monkeypatch.setenv("CORRAL_HOST", "0.0.0.0")
    settings = read_settings(port=9001, host=None)
    assert (settings.port, settings.host) == (9001, "0.0.0.0")


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PORT", "")
    assert read_settings().port == 8080


def test_all_wrong_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PORT", "99999")
    monkeypatch.setenv("CORRAL_LOG_FORMAT", "xml")
    with pytest.raises(SettingsError) as error:
        read_settings(host="")
    named = sorted(problem.partition(":")[0] for problem in error.value.problems)
    assert named == ["--host", "CORRAL_LOG_FORMAT", "CORRAL_PORT"]
    assert not any("nput" in problem or "String" in problem for problem in error.value.problems), "pydantic's own words"


def test_secrets_do_not_show_in_errors_or_in_the_settings_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_API_KEYS", "hush-hush")
    monkeypatch.setenv("CORRAL_WORKER_COMMAND", "not json hush-hush")
    with pytest.raises(SettingsError) as error:
        read_settings()
    assert "hush-hush" not in str(error.value)
    assert "CORRAL_WORKER_COMMAND: must be a JSON list of words" in str(error.value)
    monkeypatch.delenv("CORRAL_WORKER_COMMAND")
    assert "hush-hush" not in repr(read_settings())


def test_misspelt_variable_is_warned_about_with_the_nearest_name() -> None:
    keys = "keys: {team: {env: CORRAL_TEAM}}\n"
    text = keys + 'models:\n  far: {url: "http://host/v1", url_key_env: CORRAL_FAR}\n'
    found = read_catalog(text, Path("/srv/models.yaml"))
    assert not found.problems
    known = ["CORRAL_PORT", "CORRAL_TEAM", "CORRAL_FAR", "CORRAL_URL", "CORRAL_API_KEY", "CORRAL_FILE", "PATH"]
    warnings = unknown_variables(["CORRAL_PROT", *known], found.catalog)
    assert warnings == ["the environment variable CORRAL_PROT is not a setting of Corral; did you mean CORRAL_PORT?"]


@pytest.mark.parametrize("variable", ["CORRAL_CACHE", "CORRAL_API_KEY_FILE"])
def test_home_of_a_user_that_there_is_not_is_a_wrong_value(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "~no-such-user/x")
    with pytest.raises(SettingsError, match=f"{variable}: begins with ~no-such-user"):
        read_settings()
    monkeypatch.setenv(variable, "~/x")
    assert Path.home() / "x" in (read_settings().cache, read_settings().api_key_file)
