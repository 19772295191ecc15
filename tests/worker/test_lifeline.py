"""stdin as the worker sees it: launch spec, orders, and the end of the router."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.contract import Control, ControlOp, EngineOptions, LaunchSpec
from worker.lifeline import Lifeline

SPEC = LaunchSpec(
    model="m", model_path="/m.gguf", socket_path="/nowhere/s", status_fd=3, engine=EngineOptions(context=128)
)


class Exited(Exception):
    """What `os._exit` does in these tests: the thread stops here."""


class Stdin:
    """A pipe whose reading end is the lifeline's, and what became of the process."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.is_open = True
        self.exits: list[int] = []
        self.parent = 100

    def write(self, data: bytes) -> None:
        os.write(self.write_fd, data)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.write_fd)

    def exit_now(self, code: int) -> Any:
        self.exits.append(code)
        raise Exited

    def lifeline(self) -> Lifeline:
        return Lifeline(self.read_fd, exit_now=self.exit_now, parent_of=lambda: self.parent)

    def read_to_the_end(self, lifeline: Lifeline) -> None:
        with pytest.raises(Exited):
            lifeline.read()


@pytest.fixture
def stdin() -> Iterator[Stdin]:
    pipe = Stdin()
    yield pipe
    pipe.close()
    os.close(pipe.read_fd)


def test_the_first_line_is_the_launch_spec(stdin: Stdin) -> None:
    lifeline = stdin.lifeline()
    stdin.write(SPEC.to_line())
    stdin.close()
    stdin.read_to_the_end(lifeline)
    assert lifeline.wait_spec() == SPEC


def test_end_of_file_ends_the_process_at_once_with_success(stdin: Stdin) -> None:
    lifeline = stdin.lifeline()
    stdin.close()
    stdin.read_to_the_end(lifeline)
    assert stdin.exits == [0]


def test_the_socket_s_name_is_taken_away_when_the_router_is_gone(stdin: Stdin, tmp_path: Path) -> None:
    socket = tmp_path / "s"
    socket.touch()
    lifeline = stdin.lifeline()
    stdin.write(
        LaunchSpec("m", "/m.gguf", socket_path=str(socket), status_fd=3, engine=EngineOptions(context=128)).to_line()
    )
    stdin.close()
    stdin.read_to_the_end(lifeline)
    assert not socket.exists()


def test_another_parent_means_that_the_router_is_gone_though_stdin_is_open(
    stdin: Stdin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.lifeline._PARENT_CHECK_S", 0.0)
    lifeline = stdin.lifeline()
    stdin.parent = 1
    stdin.read_to_the_end(lifeline)
    assert stdin.exits == [0]


def test_a_first_line_that_is_no_spec_is_told_to_who_waits_for_it(stdin: Stdin) -> None:
    for line in (b"hello\n", b"[]\n", b'{"protocol": 1}\n', b'{"protocol": 99}\n', b'{"protocol": 1, "engine": 5}\n'):
        pipe = Stdin()
        lifeline = pipe.lifeline()
        pipe.write(line)
        pipe.close()
        pipe.read_to_the_end(lifeline)
        with pytest.raises(ValueError, match="not a launch spec"):
            lifeline.wait_spec()
        os.close(pipe.read_fd)


def test_orders_arrive_in_order_however_their_bytes_are_cut(stdin: Stdin) -> None:
    orders = [Control(ControlOp.THREADS, 2), Control(ControlOp.THREADS, 1), Control(ControlOp.DRAIN)]
    lifeline = stdin.lifeline()
    taken: list[Control] = []
    lifeline.set_on_control(taken.append)
    whole = SPEC.to_line() + b"".join(order.to_line() for order in orders)
    reader = threading.Thread(target=stdin.read_to_the_end, args=(lifeline,))
    reader.start()
    for start in range(0, len(whole), 7):
        stdin.write(whole[start : start + 7])
    stdin.close()
    reader.join()
    assert taken == orders


def test_orders_that_come_before_anybody_obeys_are_kept(stdin: Stdin) -> None:
    lifeline = stdin.lifeline()
    stdin.write(SPEC.to_line() + Control(ControlOp.DRAIN).to_line())
    stdin.close()
    stdin.read_to_the_end(lifeline)
    taken: list[Control] = []
    lifeline.set_on_control(taken.append)
    assert taken == [Control(ControlOp.DRAIN)]


def test_an_order_that_nobody_understands_is_skipped(stdin: Stdin, capfd: pytest.CaptureFixture[str]) -> None:
    lifeline = stdin.lifeline()
    taken: list[Control] = []
    lifeline.set_on_control(taken.append)
    stdin.write(SPEC.to_line() + b'{"op": "dance"}\nrubbish\n' + Control(ControlOp.DRAIN).to_line())
    stdin.close()
    stdin.read_to_the_end(lifeline)
    assert taken == [Control(ControlOp.DRAIN)]
    assert capfd.readouterr().err.count("was not understood") == 2
