"""A stub worker: speaks the whole contract with the router, without a model, and misbehaves on demand.

Owns a process that answers like a worker. Must not import anything of `worker/` but the contract, nor
aiohttp: it has to start in a tenth of a second.

Run it with `fake_worker_command()` in place of `python -P -m worker`:

    Supervisor(..., worker_command=fake_worker_command())

With the argument `--spare` it is a spare process, which waits for its launch spec.

**Controls while loading: environment variables**, to be set in the model's `env:` (workers inherit no other
variables than those on the router's allow-list).

FAKE_LOAD_S=1.5            loading takes this long (default 0), with a status line every
                           FAKE_PROGRESS_EVERY_S (default 0.05)
FAKE_LOAD_SILENT=1         no status line while loading
FAKE_LOAD_HANG=1           says "loading" again and again and never comes on (still obeys TERM)
FAKE_LOAD_HOLD=PATH        loading ends when this file exists
FAKE_FAIL_EXIT=65          reports FAILED with FAKE_FAIL_MESSAGE and exits with this code (see `ExitCode`)
FAKE_FAIL_MESSAGE=TEXT     the status error; empty = exit without a FAILED line
FAKE_CRASH_ON_LOAD=SIGSEGV kills itself by this signal while loading
FAKE_STDERR=TEXT           written to stderr at the start
FAKE_STATUS_GARBAGE=1      writes junk to the status pipe before its first line
FAKE_IGNORE_TERM=1         ignores SIGTERM
FAKE_GRANDCHILD=1          starts a child of its own in the same process group; it ignores SIGTERM
FAKE_UNTIL_INCARNATION=N   all of the above only for the starts 1..N; later starts behave
FAKE_HEARTBEAT_S=1.0       between two status lines of a worker to which nothing happens
FAKE_MAX_LEASES=N          `max_leases` of its status (default: slots + max(2, slots // 4))
FAKE_DEVICE=NAME           the device that it reports (default: the launch spec's, else CPU), with all its layers there
                           unless it is a CPU
FAKE_SPARE_EXIT=CODE       a spare exits with this code at once
FAKE_TOKENS=N              tokens of an answer when the request does not say (default 5)
FAKE_JOURNAL=PATH          appends one JSON line for each thing that happens: `{"event", "pid", "model", ...}`
                           with the events started, grandchild, ready, threads, drain, term, request,
                           generating, aborted, done, exit. `started` shows the whole environment and the
                           launch spec. Read it with `read_journal(path)`

**Controls of one request: the object `fake` in its JSON body.** All keys are optional.

tokens: N                  the answer has N pieces "w0 w1 ..." (default: FAKE_TOKENS), capped by `max_tokens`
delay_s: S                 between pieces
prefill_s: S               silence before the first piece
progress: true             with `P` frames during that silence
hold: PATH                 the first piece waits until this file exists
hold_after: N              ... or the piece after the first N waits
error: {status, code, message, param?, retry_after_s?}
                           the reply is an `E` frame and `Z`
error_after: N             the error comes after N pieces
die_after: N               SIGKILLs itself after N pieces have been written
exit_after: [N, CODE]      exits with CODE after N pieces
cut_after: N               closes the connection after N pieces, without `Z`
end_without_z: true        a complete HTTP body that lacks `Z`
status: N                  the HTTP status of the reply (default 200)
text: "..."                the whole answer is one piece with this text; with `tokens`, so many of them

A request holds a slot while it runs; more requests than slots wait in the worker. A closed connection aborts
the request and frees its slot. Answers have OpenAI's shapes and `"timings"`. `GET /health` answers
`{"status": "ok"}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fakes.worker_http import Connection, Job, until_exists, write_reply
from worker.contract import (
    Control,
    ControlOp,
    EngineCounters,
    Header,
    Histogram,
    LaunchSpec,
    ModelFacts,
    Phase,
    SlotReport,
    SlotState,
    WorkerStatus,
)

_BOUNDS = (0.01, 0.1, 1.0)
_LAYERS = 25


def fake_worker_command() -> list[str]:
    """Return the command that starts a stub worker."""
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from tests.fakes.worker import main; main()"
    return [sys.executable, "-P", "-c", code]


def read_journal(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """Return what the stubs that share this journal did, oldest first; only `event` when given."""
    if not path.exists():
        return []
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry for entry in entries if event is None or entry["event"] == event]


class StubWorker:
    """The process: status link, stdin, socket and the pretence of an engine."""

    def __init__(self, spec: LaunchSpec, stdin: asyncio.StreamReader) -> None:
        self.spec, self.stdin, self.model = spec, stdin, spec.model
        last_bad = int(os.environ.get("FAKE_UNTIL_INCARNATION", "0")) or sys.maxsize
        self.is_bad = spec.incarnation <= last_bad
        slots = spec.engine.slots
        self.slots = [SlotReport(i, SlotState.IDLE) for i in range(slots)]
        self.free = asyncio.Semaphore(slots)
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.counts = {"prompt": 0, "generated": 0, "forwards": 0, "finished": 0, "aborted": 0}
        self.ttft_counts = [0] * (len(_BOUNDS) + 1)
        self.status = WorkerStatus(
            phase=Phase.STARTING,
            max_leases=int(os.environ.get("FAKE_MAX_LEASES", slots + max(2, slots // 4))),
            num_threads=spec.num_threads,
        )
        self.num_waiting = 0
        self.is_draining = False

    def control(self, name: str) -> str:
        """Return the environment control, empty when it is unset or this start shall behave."""
        return os.environ.get(f"FAKE_{name}", "") if self.is_bad else ""

    def journal(self, event: str, **more: Any) -> None:
        if path := os.environ.get("FAKE_JOURNAL"):
            entry = {"event": event, "pid": os.getpid(), "model": self.spec.model, "at_s": time.monotonic()}
            line = json.dumps(entry | {"incarnation": self.spec.incarnation} | more) + "\n"
            with open(path, "ab") as file:
                file.write(line.encode())

    # --- status link ---

    def report(self, **changes: Any) -> None:
        """Write one status line, with `changes` kept for later lines."""
        busy = sum(slot.state != SlotState.IDLE for slot in self.slots)
        cells = sum(slot.cached_tokens for slot in self.slots)
        # As the real engine: its clock moves with every step, and when the first work comes.
        is_step = self.counts["forwards"] != self.status.step or not self.status.has_work
        self.status = replace(
            self.status,
            at_s=time.monotonic(),
            step=self.counts["forwards"],
            step_at_s=time.monotonic() if is_step else self.status.step_at_s,
            has_work=busy > 0,
            queue_length=self.num_waiting,
            slots=tuple(self.slots),
            counters=EngineCounters(
                forwards=self.counts["forwards"],
                forward_seconds=0.001 * self.counts["forwards"],
                rows=self.counts["prompt"] + self.counts["generated"],
                prompt_tokens_computed=self.counts["prompt"],
                generated_tokens=self.counts["generated"],
                finished=self.counts["finished"],
                aborted=self.counts["aborted"],
            ),
            histograms={
                "time_to_first_token_seconds": Histogram(_BOUNDS, tuple(self.ttft_counts), 0.01),
            },
            kv_cells={"used": cells, "shared": 0, "idle": 0, "total": self.spec.engine.num_kv_cells},
            memory_bytes={"rss": 10_000_000, "weights": 1_000_000},
            **changes,
        )
        with suppress(BrokenPipeError):
            os.write(self.spec.status_fd, self.status.to_line())

    async def heartbeat(self) -> None:
        while True:
            await asyncio.sleep(float(os.environ.get("FAKE_HEARTBEAT_S", "1.0")))
            if self.status.phase is Phase.READY or not self.control("LOAD_SILENT"):
                self.report()

    # --- life ---

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.on_term)
        is_spare = "--spare" in sys.argv
        self.journal(
            "started", is_spare=is_spare, env=dict(os.environ), cwd=os.getcwd(), spec=json.loads(self.spec.to_line())
        )
        if self.control("STDERR"):
            sys.stderr.write(self.control("STDERR") + "\n")
            sys.stderr.flush()
        if self.control("STATUS_GARBAGE"):
            os.write(self.spec.status_fd, b"llama_model_load: not json\n{}\n" + b"x" * 100_000 + b"\n")
        if self.control("GRANDCHILD"):
            stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", stubborn)
            self.journal("grandchild", child=child.pid)
        self.report()
        tasks = [loop.create_task(each) for each in (self.obey_stdin(), self.live(), self.heartbeat())]
        code = await self.exit_code
        self.journal("exit", code=code)
        for task in tasks:
            task.cancel()
        return code

    def exit(self, code: int) -> None:
        if not self.exit_code.done():
            self.exit_code.set_result(code)

    def on_term(self) -> None:
        self.journal("term")
        if not self.control("IGNORE_TERM"):
            self.exit(0)

    async def obey_stdin(self) -> None:
        while line := await self.stdin.readline():
            order = Control.from_line(line)
            match order.op:
                case ControlOp.THREADS:
                    self.journal("threads", num_threads=order.num_threads)
                    self.report(num_threads=order.num_threads)
                case ControlOp.DRAIN:
                    self.journal("drain")
                    self.is_draining = True
                    self.report(phase=Phase.DRAINING)
                    if all(slot.state == SlotState.IDLE for slot in self.slots):
                        self.exit(0)
        self.exit(0)

    async def live(self) -> None:
        await self.load()
        server = await asyncio.start_unix_server(self.serve, self.spec.socket_path)
        engine = self.spec.engine
        device = os.environ.get("FAKE_DEVICE") or engine.device or "CPU"
        facts = ModelFacts(
            context=engine.context,
            slots=engine.slots,
            kv_cells=engine.num_kv_cells,
            trained_context=engine.context,
            num_params=1_000,
            size_bytes=1_000,
            num_vocab=256,
            description="stub",
            has_chat_template=True,
            device=device,
            gpu_layers=0 if device.lower() == "cpu" else _LAYERS if engine.gpu_layers < 0 else engine.gpu_layers,
            total_layers=_LAYERS,
        )
        self.report(phase=Phase.READY, progress=None, facts=facts, load_seconds={"read": 0.01, "warmup": 0.001})
        self.journal("ready")
        async with server:
            await server.serve_forever()

    async def load(self) -> None:
        if self.control("LOAD_HANG"):
            self.report(phase=Phase.LOADING)
            await asyncio.Event().wait()
        if not self.control("LOAD_SILENT"):
            self.report(phase=Phase.LOADING, progress=0.0)
        load_s = float(self.control("LOAD_S") or 0)
        every_s = float(os.environ.get("FAKE_PROGRESS_EVERY_S", "0.05"))
        start_s = time.monotonic()
        while (done_s := time.monotonic() - start_s) < load_s:
            await asyncio.sleep(min(every_s, load_s - done_s))
            if not self.control("LOAD_SILENT"):
                self.report(progress=min(1.0, (time.monotonic() - start_s) / load_s))
        await until_exists(self.control("LOAD_HOLD"))
        if name := self.control("CRASH_ON_LOAD"):
            os.kill(os.getpid(), signal.Signals[name])
        if exit_code := self.control("FAIL_EXIT"):
            if message := os.environ.get("FAKE_FAIL_MESSAGE", "the stub was told to fail"):
                self.report(phase=Phase.FAILED, error=message)
            self.exit(int(exit_code))
            await asyncio.Event().wait()

    # --- requests ---

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            while request := await connection.read_request():
                method, path, headers, body = request
                if method == "GET":
                    await connection.start(200, {"Content-Type": "application/json"})
                    await connection.write(b'{"status": "ok"}')
                    await connection.end()
                elif not await self.answer_unless_closed(connection, path, headers, body):
                    return
        except ConnectionError:
            return
        finally:
            writer.close()

    async def answer_unless_closed(
        self, connection: Connection, path: str, headers: dict[str, str], body: bytes
    ) -> bool:
        """Answer; False when the connection is closed afterwards, by either side."""
        answer = asyncio.ensure_future(self.answer(connection, path, headers, body))
        closed = asyncio.ensure_future(connection.reader.read(1))
        await asyncio.wait({answer, closed}, return_when=asyncio.FIRST_COMPLETED)
        is_closed = closed.done()
        closed.cancel()
        await asyncio.wait({closed})  # else it would still be reading when the next request is read
        if not answer.done():
            answer.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            return await answer and not is_closed
        return False

    async def answer(self, connection: Connection, path: str, headers: dict[str, str], body: bytes) -> bool:
        request = json.loads(body)
        controls: dict[str, Any] = request.get("fake") or {}
        wanted = int(controls.get("tokens", os.environ.get("FAKE_TOKENS", "5")))
        limit = int(request.get("max_completion_tokens") or request.get("max_tokens") or wanted)
        job = Job(
            id=headers.get(Header.REQUEST_ID.lower(), "stub"),
            path=path,
            body=request,
            controls=controls,
            num_pieces=1 if "text" in controls and "tokens" not in controls else min(wanted, limit),
            is_capped=limit < wanted,
            created=int(headers.get(Header.CREATED.lower(), "0") or 0),
        )
        self.journal("request", id=job.id, path=path, body=request, headers=headers)
        slot = -1
        try:
            self.num_waiting += 1
            try:
                await self.free.acquire()
            finally:
                self.num_waiting -= 1
            slot = next(s.id for s in self.slots if s.state == SlotState.IDLE)
            self.move(slot, SlotState.PROCESSING_PROMPT, request_id=job.id, prompt_total=7, generated=0)
            is_open = await write_reply(self, connection, job, slot)
        except (asyncio.CancelledError, ConnectionError):
            self.counts["aborted"] += 1
            self.journal("aborted", id=job.id, generated=job.generated, had_slot=slot >= 0)
            raise
        finally:
            if slot >= 0:
                self.free.release()
                self.move(slot, SlotState.IDLE, request_id=None, started_at_s=None)
            if self.is_draining and all(s.state == SlotState.IDLE for s in self.slots):
                self.exit(0)
        self.journal("done", id=job.id, generated=job.generated)
        return is_open

    def move(self, slot: int, state: SlotState, **changes: Any) -> None:
        self.slots[slot] = replace(self.slots[slot], state=state, **changes)
        self.report()

    def count_token(self, job: Job, slot: int) -> None:
        if job.first_s is None:
            job.first_s = time.monotonic()
            self.ttft_counts[sum(job.first_s - job.started_s > bound for bound in _BOUNDS)] += 1
        job.generated += 1
        self.counts["generated"] += 1
        self.counts["forwards"] += 1
        self.slots[slot] = replace(self.slots[slot], generated=job.generated, cached_tokens=7 + job.generated)


async def _main() -> int:
    reader = asyncio.StreamReader(limit=64 * 2**20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    spec = LaunchSpec.from_line(await reader.readline())
    return await StubWorker(spec, reader).run()


def main() -> None:
    """Run one stub worker in this process."""
    if "--spare" in sys.argv and (spare_exit := os.environ.get("FAKE_SPARE_EXIT")):
        sys.exit(int(spare_exit))
    code = asyncio.run(_main())
    sys.stdout.flush()
    os._exit(code)  # told to exit, it must not wait for open connections or pipes
