"""`corral reload` tells what has changed, or everything that is wrong and where."""

from __future__ import annotations

import json

from tests.fakes.corral_http import FakeCorral, as_json, refusal
from tests.router.cli.conftest import Corral

UNCHANGED = {
    "success": True,
    "models": 2,
    "added": [],
    "removed": [],
    "changed": {},
    "restarted_when_idle": {},
    "unchanged": 2,
    "settings": [],
}
PROBLEMS = {
    "success": False,
    "error": {"message": "nothing has changed: …", "code": "invalid_catalog"},
    "errors": [
        {"where": "models.a.slots", "message": "must be 1 or more", "line": 3, "column": 12},
        {"where": "", "message": "the key file is gone", "line": None, "column": None},
    ],
}


def test_every_change_has_a_line(fake: FakeCorral, corral: Corral) -> None:
    changes = UNCHANGED | {
        "models": 3,
        "added": ["new"],
        "removed": ["old"],
        "changed": {"a": ["aliases", "priority"]},
        "restarted_when_idle": {"b": ["context"]},
        "settings": ["limits.max_queue"],
    }
    fake.answers("POST", "/admin/reload", changes)
    done = corral("reload")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "added    new",
        "removed  old",
        "changed  a: aliases, priority",
        "changed  b: context (takes effect when it is loaded anew, which happens once it is idle)",
        "changed  for all models: limits.max_queue",
        "3 models now",
    ]


def test_nothing_new_is_said_to_be_nothing(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/admin/reload", UNCHANGED)
    assert corral("reload").stdout == "nothing has changed; 2 models\n"
    assert json.loads(corral("reload", "--json").stdout) == UNCHANGED


def test_problems_are_printed_as_check_prints_them(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/admin/reload", as_json(PROBLEMS, 422))
    fake.answers("GET", "/admin/config", {"path": "/etc/models.yaml"})
    done = corral("reload")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "/etc/models.yaml:3:12: models.a.slots: must be 1 or more",
        "/etc/models.yaml: the key file is gone",
        "2 problems; nothing has changed, the server goes on as before",
    ]
    assert json.loads(corral("reload", "--json").stdout) == PROBLEMS


def test_problems_of_a_server_that_hides_its_path_have_their_lines_still(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/admin/reload", as_json(PROBLEMS, 422))
    assert corral("reload").stderr.startswith("line 3, column 12: models.a.slots: must be")


def test_a_key_that_may_not_is_told_so(fake: FakeCorral, corral: Corral) -> None:
    fake.answers("POST", "/admin/reload", refusal(403, "this key lacks the scope admin", "forbidden"))
    done = corral("reload")
    assert (done.exit_code, done.stderr) == (4, "corral: this key lacks the scope admin\n")
