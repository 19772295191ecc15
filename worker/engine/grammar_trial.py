"""Tries out grammars in a process of its own, which may crash or be ended: a few lines can keep llguidance busy for
hours, or nest so deeply that its stack overflows and takes the process along.

One process for all, started by the first grammar, and ended when it is idle; it goes with its parent. Its other side is
`python -P -m worker.engine.grammar_trial`, which reads grammars and writes what is wrong with each, as lines of
JSON. Must not know how grammars come about.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_S = 1.0
"""What compiling a grammar and its first steps may take."""
WAIT_S = 15.0
"""The process has a low priority: on a busy machine a second of it may take that long."""
STACK_BYTES = 4 * 2**20
"""Less than any thread has that uses grammars later: what does not overflow here does not there."""
IDLE_S = 120.0
NUM_STEPS = 24
_NICE = 10
_ALLOWED = bytes([200])
"""What llguidance gives a token that may come."""

TOO_COSTLY = "it is too complex: compiling it and its first steps take more than a second"
TOO_DEEP = "it is too complex: its rules or expressions are nested too deeply"
PANIC = "panic"
"""As the library itself says it where it can."""


class Trials:
    """The process, as long as it is needed. Safe to use from several threads: one grammar is tried at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: threading.Timer | None = None

    def problem_of(self, grammar: str, special: Sequence[int], num_vocab: int, limits: Mapping[str, Any]) -> str | None:
        """Return why the grammar cannot be used; None if nothing speaks against it.

        `special` are tokens that grammars may name. Raises: OSError when no process can be started.
        """
        question = json.dumps([grammar, list(special), num_vocab, limits]).encode() + b"\n"
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            try:
                answer = self._ask(question)
                if isinstance(answer, _Ended):  # by somebody else, such as a signal to all of a worker's processes
                    answer = self._ask(question)
            finally:
                self._idle = threading.Timer(IDLE_S, self.close)
                self._idle.daemon = True
                self._idle.start()
        if isinstance(answer, _Ended):
            raise OSError(f"it has ended with the code {answer.exit_code}")
        return answer

    def close(self) -> None:
        """The process has ended; the next grammar starts another one."""
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            if self._process is not None:
                self._process.kill()
                _ended(self._process)
                self._process = None

    def _ask(self, question: bytes) -> str | _Ended | None:
        """Return the answer of the process, or what its end tells; `_Ended` where that tells nothing."""
        process = self._process
        if process is not None and process.poll() is not None:
            _ended(process)
            process = None
        if process is None:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "worker.engine.grammar_trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        asked_s = time.monotonic()
        end = threading.Timer(WAIT_S, process.kill)
        end.start()
        try:
            with contextlib.suppress(OSError):  # it has ended: there is no answer
                process.stdin.write(question)
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            end.cancel()
        if line.endswith(b"\n"):
            answer = json.loads(line)
            return None if answer is True else str(answer)
        self._process = None
        exit_code = _ended(process)
        if exit_code in _CRASHES:
            return TOO_DEEP
        if exit_code == _FAULT:
            return PANIC
        if exit_code in _OUT_OF_TIME or time.monotonic() - asked_s >= WAIT_S:
            return TOO_COSTLY
        return _Ended(exit_code)


@dataclass(frozen=True, slots=True)
class _Ended:
    """The process has ended, and not because of the grammar."""

    exit_code: int


_FAULT = 70
"""Exit code where the library has found a fault in itself."""
_OUT_OF_TIME = frozenset({-int(signal.SIGPROF)} if hasattr(signal, "SIGPROF") else ())
_CRASHES = frozenset(
    {-int(signal.SIGSEGV), -int(signal.SIGABRT), -int(getattr(signal, "SIGBUS", 0)), 0xC00000FD, 0xC0000005}
)
"""Exit codes of a stack that has overflown; the last two are those of Windows."""


def _ended(process: subprocess.Popen[bytes]) -> int:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    return process.wait() & 0xFFFFFFFF if sys.platform == "win32" else process.wait()


# --- the other side ---------------------------------------------------------------------------------------


class _Bytes:
    """A vocabulary of single bytes, in which the special tokens have the ids that grammars know them by."""

    bos_token_id = None

    def __init__(self, special: Sequence[int], num_vocab: int) -> None:
        self.special_token_ids = sorted(special)
        names = {token: f"<{token}>".encode() for token in special}
        plain = iter(range(256))
        self.tokens = [
            names[token] if token in names else bytes([next_byte]) if (next_byte := next(plain, -1)) >= 0 else b""
            for token in range(max(num_vocab, 256 + len(names)))
        ]
        self._byte_ids = {piece[0]: token for token, piece in enumerate(self.tokens) if token not in names and piece}
        self.eos_token_id = self.special_token_ids[0] if special else 0

    def __call__(self, text: bytes | str) -> list[int]:
        return [self._byte_ids[byte] for byte in (text.encode() if isinstance(text, str) else text)]


def try_out(tokenizer: LLTokenizer, grammar: str, limits: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the grammar, after a few steps of a random answer."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits))
    if matcher.is_error():
        return str(matcher.get_error())
    chance = random.Random(0)
    for _ in range(NUM_STEPS):
        mask = matcher.compute_logit_bias()
        if matcher.is_error():
            return str(matcher.get_error())
        matcher.compute_ff_tokens()
        place = mask.find(_ALLOWED, chance.randrange(len(mask)))
        token = place if place >= 0 else mask.find(_ALLOWED)
        if token < 0 or not matcher.consume_token(token) or matcher.is_stopped():
            break
    return None


def _serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    tokenizer: LLTokenizer | None = None
    made_for: object = None
    while True:
        line = asked.readline()
        if not line:
            return
        grammar, special, num_vocab, limits = json.loads(line)
        if made_for != (special, num_vocab):
            made_for = (special, num_vocab)
            tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(special, num_vocab)), slices=[])
        assert tokenizer is not None
        with _limited():
            problem = try_out(tokenizer, grammar, limits)
        answers.write(json.dumps(True if problem is None else problem).encode() + b"\n")
        answers.flush()


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """The kernel ends this process when the work has taken too much of the processor. Elsewhere the parent does."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0.0)


def main() -> None:
    """The parent has gone."""
    if hasattr(os, "nice"):
        os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not end up in an answer
    threading.stack_size(STACK_BYTES)
    threading.excepthook = lambda _: os._exit(_FAULT)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, answers))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
