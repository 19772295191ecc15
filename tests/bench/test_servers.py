"""Who can take part on this machine, and what everybody is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.figures import DEFAULT, OURS, PYTHON, Contestant, Kind
from bench.servers import Load, Programs, find_programs


def test_those_that_were_not_found_do_not_take_part() -> None:
    nothing = Programs(None, None, 2)
    assert [nothing.can_run(one) for one in (OURS, DEFAULT, PYTHON)] == [True, False, False]
    everything = Programs(Path("llama-server"), Path("server.py"), 2)
    assert all(everything.can_run(one) for one in (OURS, DEFAULT, PYTHON))


def test_options_that_this_version_does_not_know_do_not_take_part() -> None:
    programs = Programs(None, None, 2)
    assert programs.can_run(Contestant("a", Kind.OURS, keys={"slots": 2}))
    assert not programs.can_run(Contestant("b", Kind.OURS, keys={"slotz": 2}))


def test_programs_named_by_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER", "/somewhere/llama-server")
    monkeypatch.setenv("LLAMA_CPP_PYTHON_SERVER", "/somewhere/server.py")
    programs = find_programs()
    assert (programs.llama_server, programs.python_server) == (
        Path("/somewhere/llama-server"),
        Path("/somewhere/server.py"),
    )
    assert programs.num_threads >= 1


def test_all_slots_together_have_what_one_may_use_times_their_number_unless_told_less() -> None:
    assert Load(Path("m.gguf"), 4, 2048).num_cells == 8192
    assert Load(Path("m.gguf"), 4, 2048, 1000).num_cells == 1000
