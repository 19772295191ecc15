"""Whole worker processes with a tiny real model: start, status link, orders, answers and every way to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.tiny_gguf import write_not_gguf, write_tiny_llama, write_truncated
from worker.contract import (
    Control,
    ControlOp,
    EngineOptions,
    ErrorPayload,
    ExitCode,
    FrameDecoder,
    FrameType,
    LaunchSpec,
    Phase,
    SlotState,
    WorkerStatus,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MAIN = "from worker.__main__ import main\nmain()"
WITHIN_S = 30.0


class Process:
    """One worker process as its router would hold it."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, status: asyncio.StreamReader) -> None:
        self.process = process
        self.folder = folder
        self.socket_path = str(folder / "s")
        self.session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=self.socket_path))
        self._status = status
        self.spec: LaunchSpec
        self.statuses: list[WorkerStatus] = []

    async def until(self, wanted: Callable[[WorkerStatus], bool]) -> WorkerStatus:
        """Return the next status for which `wanted` is true."""
        async with asyncio.timeout(WITHIN_S):
            while line := await self._status.readline():
                self.statuses.append(WorkerStatus.from_line(line))
                if wanted(self.statuses[-1]):
                    return self.statuses[-1]
        raise AssertionError(f"the status link ended: {self.statuses}, {await self.words()}")

    async def ready(self) -> WorkerStatus:
        return await self.until(lambda status: status.phase is Phase.READY)

    async def exit_code(self) -> int:
        async with asyncio.timeout(WITHIN_S):
            return await self.process.wait()

    async def words(self) -> str:
        """What it wrote to stderr; only after its end."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    def order(self, order: Control) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order.to_line())

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def chat(self, text: str = "hello world", **fields: Any) -> Any:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.session.post("http://worker/v1/chat/completions", json=body)

    async def answer(self, **fields: Any) -> Any:
        """Return the JSON of a whole reply."""
        async with self.chat(**fields) as response:
            data, end = FrameDecoder().feed(await response.read())
        assert end.type is FrameType.END
        return json.loads(data.payload)

    async def refusal(self, **fields: Any) -> ErrorPayload:
        async with self.chat(**fields) as response:
            error, _ = FrameDecoder().feed(await response.read())
        return ErrorPayload.from_json(error.payload)


@asynccontextmanager
async def start(
    model_path: Path, first_line: bytes | None = None, *, broken_by: str = "", is_spare: bool = False, **options: Any
) -> AsyncIterator[Process]:
    """A worker that has been told what to load; killed at the end if need be.

    `broken_by` is Python that runs in the worker before anything else.
    """
    engine = EngineOptions(**{"context": 256, "slots": 2, **options.pop("engine", {})})
    with tempfile.TemporaryDirectory(prefix="cw") as name:
        folder = Path(name)
        read_fd, write_fd = os.pipe()
        spec = LaunchSpec(
            model="tiny",
            model_path=str(model_path),
            socket_path=str(folder / "s"),
            status_fd=write_fd,
            engine=engine,
            check_cells=True,
            **options,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(("-P", "-m", "worker") if not broken_by else ("-P", "-c", f"{broken_by}\n{MAIN}")),
            *(("--spare",) if is_spare else ()),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(write_fd,),
            cwd=folder,
        )
        os.close(write_fd)
        status = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(status), os.fdopen(read_fd, "rb")
        )
        worker = Process(process, folder, status)
        assert process.stdin is not None
        process.stdin.write(spec.to_line() if first_line is None else first_line)
        worker.spec = spec
        try:
            yield worker
        finally:
            await worker.session.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
            transport.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_llama(path, chat_template=CHATML)
    return path


async def test_a_worker_becomes_ready_answers_and_tells_so(tiny: Path) -> None:
    async with start(tiny, chat_template_kwargs={"x": 1}, num_threads=1) as worker:
        status = await worker.ready()
        phases = [one.phase for one in worker.statuses]
        assert phases == sorted(phases, key=list(Phase).index)
        assert phases[0] is Phase.STARTING
        assert {Phase.LOADING, Phase.WARMING} <= set(phases)
        assert status.facts is not None
        assert (status.facts.context, status.facts.slots, status.facts.has_chat_template) == (256, 2, True)
        assert status.max_leases == 4
        assert set(status.load_seconds) == {"spawn", "import", "read", "warmup"}
        assert all(0 <= seconds < WITHIN_S for seconds in status.load_seconds.values())
        assert status.memory_bytes["rss"] > 2**20
        assert [slot.state for slot in status.slots] == [SlotState.IDLE, SlotState.IDLE]

        reply = await worker.answer(max_tokens=5)
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["completion_tokens"] == 5

        later = await worker.until(lambda status: status.counters.finished == 1 and not status.has_work)
        assert later.counters.generated_tokens == 5


async def test_streams_of_several_choices_are_generated_side_by_side(tiny: Path) -> None:
    async with start(tiny) as worker:
        await worker.ready()
        whole = await worker.answer(max_tokens=8, n=2, seed=1, temperature=1.0)
        texts = [choice["message"]["content"] for choice in whole["choices"]]
        assert texts[0] != texts[1]
        again = await worker.answer(max_tokens=8, n=2, seed=1, temperature=1.0)
        assert [choice["message"]["content"] for choice in again["choices"]] == texts


async def test_a_slot_shows_that_it_generates_and_is_free_soon_after_its_client_has_left(tiny: Path) -> None:
    async with start(tiny, engine={"context": 8192, "slots": 2}) as worker:
        await worker.ready()
        async with worker.chat(stream=True, ignore_eos=True) as response:
            await response.content.readany()
            await worker.until(lambda status: any(slot.state is SlotState.GENERATING for slot in status.slots))
        gone = await worker.until(lambda status: all(slot.state is SlotState.IDLE for slot in status.slots))
        assert gone.counters.aborted == 1
        assert not gone.has_work


async def test_end_of_stdin_ends_the_worker_at_once_even_in_the_middle_of_an_answer(tiny: Path) -> None:
    async with start(tiny, engine={"context": 8192}) as worker:
        await worker.ready()
        async with worker.chat(stream=True, ignore_eos=True) as response:
            await response.content.readany()
            worker.close_stdin()
            assert await worker.exit_code() == ExitCode.OK
        assert os.listdir(worker.folder) == []
        assert "the router is gone" in await worker.words()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_idle_worker_with_success(tiny: Path, number: signal.Signals) -> None:
    async with start(tiny) as worker:
        await worker.ready()
        worker.process.send_signal(number)
        assert await worker.exit_code() == ExitCode.OK


@pytest.mark.parametrize("how", ["order", "signal"])
async def test_a_draining_worker_finishes_what_runs_and_refuses_what_comes(tiny: Path, how: str) -> None:
    async with start(tiny, engine={"context": 8192}) as worker:
        await worker.ready()
        async with worker.chat(stream=True, ignore_eos=True, max_tokens=600) as response:
            body = await response.content.readany()
            if how == "order":
                worker.order(Control(ControlOp.DRAIN))
            else:
                worker.process.send_signal(signal.SIGTERM)
            await worker.until(lambda status: status.phase is Phase.DRAINING)
            error = await worker.refusal()
            assert (error.status, error.code) == (503, "worker_draining")
            frames = FrameDecoder().feed(body + await response.read())
        assert frames[-1].type is FrameType.END
        assert json.loads(frames[-1].payload)["usage"]["completion_tokens"] == 600
        last = await worker.until(lambda status: status.counters.finished == 1)
        assert last.counters.generated_tokens == 600, "nothing that it counted is lost"
        assert await worker.exit_code() == ExitCode.OK


async def test_an_order_changes_the_number_of_threads(tiny: Path) -> None:
    async with start(tiny, num_threads=1) as worker:
        assert (await worker.ready()).num_threads == 1
        worker.order(Control(ControlOp.THREADS, 2))
        await worker.until(lambda status: status.num_threads == 2)


@pytest.mark.parametrize("damage", ["truncated", "not_gguf", "missing"])
async def test_a_file_that_cannot_be_loaded_is_told_with_llama_cpps_own_reason(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "bad.gguf"
    if damage == "truncated":
        write_truncated(path)
    elif damage == "not_gguf":
        write_not_gguf(path)
    async with start(path) as worker:
        failed = await worker.until(lambda status: status.phase is Phase.FAILED)
        assert failed.error is not None
        assert "llama.cpp could not load the file: " in failed.error
        assert await worker.exit_code() == ExitCode.BAD_MODEL


@pytest.mark.parametrize("how", ["stdin", "signal"])
async def test_a_load_that_hangs_keeps_no_worker_alive(tmp_path: Path, how: str) -> None:
    pipe = tmp_path / "hangs.gguf"
    os.mkfifo(pipe)  # opening it waits for a writer that never comes
    async with start(pipe) as worker:
        await worker.until(lambda status: status.phase is Phase.LOADING)
        if how == "stdin":
            worker.close_stdin()
        else:
            worker.process.send_signal(signal.SIGTERM)
        assert await worker.exit_code() == ExitCode.OK


@pytest.mark.parametrize("line", [b"hello\n", b"{}\n", b'{"protocol": 99}\n'])
async def test_a_launch_spec_that_cannot_be_read_is_told_and_has_its_own_exit_code(tiny: Path, line: bytes) -> None:
    async with start(tiny, line) as worker:
        assert await worker.exit_code() == ExitCode.BAD_SPEC
        assert "not a launch spec" in await worker.words()


async def test_a_chat_template_that_cannot_be_compiled_harms_chat_alone(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path, chat_template="{% if %}")
    async with start(path) as worker:
        status = await worker.ready()
        assert status.facts is not None
        assert status.facts.has_chat_template is False
        assert (await worker.refusal()).code == "no_chat_template"
        body = {"prompt": "hello", "max_tokens": 2}
        async with worker.session.post("http://worker/v1/completions", json=body) as response:
            assert FrameDecoder().feed(await response.read())[-1].type is FrameType.END


async def test_the_template_of_the_launch_spec_replaces_the_files_own(tiny: Path) -> None:
    async with start(tiny, chat_template="{{ raise_exception('mine') }}") as worker:
        await worker.ready()
        assert "mine" in (await worker.refusal()).message


async def test_requests_bring_templates_only_where_the_launch_spec_allows_it(tiny: Path) -> None:
    source = "{{ raise_exception('theirs') }}"
    async with start(tiny) as worker:
        await worker.ready()
        assert "allow_request_templates" in (await worker.refusal(chat_template=source)).message
    async with start(tiny, allow_request_templates=True) as worker:
        await worker.ready()
        assert (await worker.refusal(chat_template=source)).message == "theirs"


async def test_the_log_holds_no_prompt(tiny: Path) -> None:
    async with start(tiny, log_level="DEBUG") as worker:
        await worker.ready()
        await worker.answer(text="marker secret", max_tokens=3)
        await worker.refusal(text="marker secret", temperature=-1)
        worker.process.terminate()
        await worker.exit_code()
        words = await worker.words()
        assert "ready" in words
        assert "secret" not in words


async def test_an_engine_that_fails_tells_its_clients_and_the_router_and_ends_the_worker(tiny: Path) -> None:
    broken = """
from worker.engine.core import EngineCore
from worker.engine.errors import BackendFailed
def step(self): raise BackendFailed(-3)
EngineCore.step = step
"""
    async with start(tiny, broken_by=broken) as worker:
        await worker.ready()
        error = await worker.refusal()
        assert (error.status, error.code) == (503, "engine_stopped")
        failed = await worker.until(lambda status: status.phase is Phase.FAILED)
        assert failed.error == "the engine failed: llama_decode failed with code -3"
        assert await worker.exit_code() == ExitCode.ENGINE_FAILED


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (
            "from worker.reporter import Reporter as of\nasync def run(self): {} ['key']\nof.run = run",
            "the status reports",
        ),
        ("import worker.memory as of\ndef read_pss(): {} ['key']\nof.read_pss = read_pss", "the measuring of memory"),
    ],
    ids=["reports", "memory"],
)
async def test_a_worker_whose_own_task_dies_says_so_and_ends(tiny: Path, broken: str, told: str) -> None:
    async with start(tiny, broken_by=broken) as worker:
        failed = await worker.until(lambda status: status.phase is Phase.FAILED)
        assert failed.error == f"{told} failed: KeyError('key')"
        assert await worker.exit_code() == ExitCode.ENGINE_FAILED


async def test_the_reason_of_a_failure_gets_out_when_snapshots_are_what_fails(tiny: Path) -> None:
    broken = """
import worker.engine.engine
def snapshot(self): return {}['key']
worker.engine.engine.Engine.snapshot = snapshot
"""
    async with start(tiny, broken_by=broken) as worker:
        failed = await worker.until(lambda status: status.phase is Phase.FAILED)
        assert "KeyError('key')" in (failed.error or "")
        assert await worker.exit_code() == ExitCode.ENGINE_FAILED


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        ("OutOfMemory('no room for the weights')", ExitCode.NO_MEMORY, "no room for the weights"),
        ("MemoryError()", ExitCode.NO_MEMORY, "not enough memory to load the model"),
        ("BadModel('of another kind')", ExitCode.BAD_MODEL, "of another kind"),
        ("ZeroDivisionError('a bug')", ExitCode.ENGINE_FAILED, "unexpected error: ZeroDivisionError('a bug')"),
    ],
)
async def test_every_failure_to_load_has_its_exit_code_and_its_words(
    tiny: Path, error: str, code: ExitCode, told: str
) -> None:
    broken = f"""
from worker.engine import llama
from worker.engine.errors import BadModel, OutOfMemory
def load(*args, **kwargs): raise {error}
llama.load_backend = load
"""
    async with start(tiny, broken_by=broken) as worker:
        failed = await worker.until(lambda status: status.phase is Phase.FAILED)
        assert failed.error == told
        assert await worker.exit_code() == code
