"""Who may do what: keys from every place, one answer to every wrong one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from router.api_keys import KeyLimits, KeySpec
from router.auth import ALL_SCOPES, Grant, KeyProblem, KeyRing, Scope, load_key_ring, unauthorized
from router.errors import Forbidden
from router.settings import RouterSettings


def make_ring(tmp_path: Path, *, keys: tuple[KeySpec, ...] = (), **settings: object) -> KeyRing:
    return load_key_ring(RouterSettings(**settings), keys, {"TEAM_KEY": "team-secret\n"})  # type: ignore[arg-type]


def grant_of(ring: KeyRing, headers: dict[str, str]) -> Grant:
    found = ring.find(headers)
    assert found is not None
    return found


def test_without_keys_everybody_may_do_everything() -> None:
    ring = KeyRing()
    assert ring.is_empty
    assert grant_of(ring, {}).scopes == ALL_SCOPES
    assert grant_of(ring, {"Authorization": "Bearer whatever"}).key_id is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer right"},
        {"Authorization": "bearer right"},
        {"Authorization": "BEARER   right "},
        {"x-api-key": "right"},
        {"Authorization": "Basic abc", "x-api-key": "right"},
        {"Authorization": "Bearer wrong", "x-api-key": "right"},
    ],
)
def test_key_is_accepted_in_either_header(tmp_path: Path, headers: dict[str, str]) -> None:
    assert grant_of(make_ring(tmp_path, api_keys="right"), headers).key_id == "env-1"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "right"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer righ"},
        {"Authorization": "Bearer rightx"},
        {"Authorization": "Basic right"},
        {"Authorization": "Bearer r\udcffight"},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
    ],
)
def test_every_failure_gets_the_same_short_answer(tmp_path: Path, headers: dict[str, str]) -> None:
    assert make_ring(tmp_path, api_keys="right").find(headers) is None
    assert unauthorized().message == (
        "a valid API key is required: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
    )


def test_keys_come_from_the_environment_a_file_and_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# ours\n\n one \ntwo\n")
    (tmp_path / "team").write_text("filed\n")
    ring = make_ring(
        tmp_path,
        api_keys="a, b,",
        admin_keys="root",
        metrics_keys="prom",
        api_key_file=tmp_path / "keys",
        keys=(
            KeySpec("team", env="TEAM_KEY", scopes=frozenset({"inference", "metrics"}), priority=-7),
            KeySpec("hashed", sha256=hashlib.sha256(b"plain").hexdigest(), scopes=frozenset({"admin"})),
            KeySpec("filed", file=tmp_path / "team"),
        ),
    )
    granted = {
        key: grant_of(ring, {"x-api-key": key})
        for key in ("a", "b", "root", "prom", "one", "two", "team-secret", "plain", "filed")
    }
    assert [grant.key_id for grant in granted.values()] == [
        "env-1",
        "env-2",
        "admin-1",
        "metrics-1",
        "file-1",
        "file-2",
        "team",
        "hashed",
        "filed",
    ]
    assert granted["a"].scopes == {Scope.INFERENCE}
    assert granted["prom"].scopes == {Scope.METRICS}
    assert granted["team-secret"].scopes == {Scope.INFERENCE, Scope.METRICS}
    assert [grant.priority for grant in granted.values()] == [0, 0, 0, 0, 0, 0, -7, 0, 0]
    assert ring.find({"x-api-key": "# ours"}) is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (KeySpec("x", env="NOT_SET"), "NOT_SET is not set"),
        (KeySpec("x", file=Path("/nonexistent/keys")), "/nonexistent/keys"),
        (KeySpec("x"), "`env`, `file` or `sha256`"),
    ],
)
def test_missing_key_stops_the_start_instead_of_leaving_the_door_open(
    tmp_path: Path, spec: KeySpec, words: str
) -> None:
    with pytest.raises(KeyProblem, match=r"keys\.x") as problem:
        make_ring(tmp_path, keys=(spec,))
    assert words in str(problem.value)


def test_key_file_without_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nothing yet\n")
    with pytest.raises(KeyProblem, match="has no key in it"):
        make_ring(tmp_path, api_key_file=tmp_path / "keys")


def test_admin_scope_includes_the_others(tmp_path: Path) -> None:
    ring = make_ring(tmp_path, api_keys="user", admin_keys="root")
    admin, user = grant_of(ring, {"x-api-key": "root"}), grant_of(ring, {"x-api-key": "user"})
    for scope in Scope:
        admin.require(scope)
    user.require(Scope.METRICS, Scope.INFERENCE)
    with pytest.raises(Forbidden, match="`admin`"):
        user.require(Scope.ADMIN)


def test_key_that_is_gone_or_may_less_than_before_no_longer_holds(tmp_path: Path) -> None:
    ring = make_ring(tmp_path, api_keys="user", admin_keys="root")
    root, user = grant_of(ring, {"x-api-key": "root"}), grant_of(ring, {"x-api-key": "user"})
    for keys, holds in (
        ({"api_keys": "user", "admin_keys": "root"}, [True, True]),
        ({"api_keys": "other, user", "admin_keys": "new"}, [False, True]),
        ({"api_keys": "root"}, [False, False]),
        ({}, [True, True]),
    ):
        ring.adopt(make_ring(tmp_path, **keys))
        assert [ring.still_grants(root), ring.still_grants(user)] == holds, keys


def test_who_came_without_a_key_may_not_go_on_once_there_are_keys(tmp_path: Path) -> None:
    ring = KeyRing()
    nobody = grant_of(ring, {})
    ring.adopt(make_ring(tmp_path, api_keys="user"))
    assert not ring.still_grants(nobody)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nobody-of-that-name/key", "home directory"),
        ("/dev/zero", "not a regular file"),
        ("/nowhere/key", "No such file"),
    ],
)
def test_file_of_a_key_that_cannot_be_read_says_why(tmp_path: Path, path: str, words: str) -> None:
    with pytest.raises(KeyProblem) as problem:
        make_ring(tmp_path, keys=(KeySpec("team", file=Path(path)),))
    assert words in str(problem.value)
    assert "keys.team" in str(problem.value)


def test_file_without_an_end_is_no_file_of_keys(tmp_path: Path) -> None:
    with pytest.raises(KeyProblem, match="larger than 1 MiB"):
        make_ring(tmp_path, api_key_file=Path("/dev/zero"))


def test_lines_of_a_key_file_may_be_sums(tmp_path: Path) -> None:
    sums = [hashlib.sha256(key).hexdigest() for key in (b"one", b"two", b"three")]
    text = f"plain\nsha256:{sums[0]}\n# and\n  sha256: {sums[1].upper()}  \nSHA256:{sums[2]}\n"
    (tmp_path / "keys").write_text(text)
    ring = make_ring(tmp_path, api_key_file=tmp_path / "keys", keys=(KeySpec("team", file=tmp_path / "keys"),))
    found = [grant_of(ring, {"x-api-key": key}).key_id for key in ("plain", "one", "two", "three")]
    assert found == ["file-1", "file-2", "file-3", "file-4"]
    for text in (sums[0], f"sha256:{sums[0]}"):
        assert ring.find({"x-api-key": text}) is None


@pytest.mark.parametrize("rest", ["", "abc", "corral-secret", "0" * 63, "0" * 65, "g" * 64, "0" * 32 + " " + "0" * 32])
def test_wrong_sum_in_a_key_file_is_refused_with_its_line_and_not_repeated(tmp_path: Path, rest: str) -> None:
    (tmp_path / "keys").write_text(f"# ours\nplain-key\nsha256:{rest}\n")
    for options in ({"api_key_file": tmp_path / "keys"}, {"keys": (KeySpec("team", file=tmp_path / "keys"),)}):
        with pytest.raises(KeyProblem) as problem:
            make_ring(tmp_path, **options)  # type: ignore[arg-type]
        words = str(problem.value)
        assert f"line 3 of {tmp_path / 'keys'}" in words
        assert "plain-key" not in words
        assert not rest or f":{rest}" not in words
        assert problem.value.__cause__ is None
        assert problem.value.__suppress_context__


def test_limits_of_a_key_come_with_its_grant(tmp_path: Path) -> None:
    limits = KeyLimits(("a",), 5, 4, 60, 20_000, 2.0)
    ring = make_ring(tmp_path, keys=(KeySpec("team", env="TEAM_KEY", limits=limits),))
    grant = grant_of(ring, {"x-api-key": "team-secret"})
    assert grant.limits == limits
    assert (grant.usable, grant.visible) == (("a",), ("a",))


def test_ring_with_other_limits_is_another_one(tmp_path: Path) -> None:
    rings = [
        make_ring(tmp_path, keys=(KeySpec("team", env="TEAM_KEY", limits=KeyLimits(max_concurrent=number)),))
        for number in (1, 1, 2)
    ]
    assert rings[0].is_same_as(rings[1])
    assert not rings[0].is_same_as(rings[2])


def test_every_key_is_compared_in_constant_time_whichever_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    ring = make_ring(tmp_path, api_keys="a, b, c")
    monkeypatch.setattr("router.auth.hmac.compare_digest", compare)
    for key in ("a", "c"):
        compared.clear()
        assert ring.find({"x-api-key": key}) is not None
        assert len(compared) == 3
    compared.clear()
    assert ring.find({"x-api-key": "wrong", "Authorization": "Bearer wrong"}) is None
    assert len(compared) == 6
