#!/usr/bin/env python3
"""Holds Corral's address, so that it can be restarted without a failed request where there is no systemd.

    hold.py 127.0.0.1:8080 .venv/bin/corral serve models.yaml

Runs the command with the address as its socket, and again when it has ended; clients wait in the socket meanwhile.
SIGUSR2 restarts it, SIGHUP has it read its configuration again, SIGTERM or Ctrl-C stops it and then this, the same
again at once. Gives up when the command has ended five times within a minute without being asked to. Needs Python 3.9
and nothing else. Must not know anything of Corral but how a socket is passed.
"""

import contextlib
import os
import signal
import socket
import sys
import time

FIRST_PASSED_FD = 3  # sd_listen_fds(3)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP)
MAX_ENDS, WITHIN_S, PAUSE_S = 5, 60.0, 2.0


class Holder:
    """One address, and the process that serves on it."""

    def __init__(self, address: str, command: list[str]) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, int(port)), family=family, backlog=4096)
        self._command = command
        self._pid = 0
        self._is_stopping = self._is_asked_for = False
        for number in SIGNALS:
            signal.signal(number, self._note)

    def run(self) -> int:
        """Return the last exit code of the command once it is not to run any more."""
        ends: list[float] = []
        while True:
            self._is_asked_for = False
            self._start()
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = 0
            if self._is_stopping:
                return code if code >= 0 else 128 - code
            if self._is_asked_for:
                continue
            now = time.monotonic()
            ends = [at for at in ends if now - at < WITHIN_S] + [now]
            say(f"the command has ended with code {code}")
            if len(ends) >= MAX_ENDS:
                say(f"giving up: {MAX_ENDS} times within {WITHIN_S:.0f} seconds")
                return 1
            time.sleep(PAUSE_S)
            if self._is_stopping:
                return 0

    def _start(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._pid = os.fork()
        if not self._pid:
            self._become()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _become(self) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.setpgid(0, 0)  # Ctrl-C reaches it once, from us
        os.dup2(self._socket.fileno(), FIRST_PASSED_FD)
        os.set_inheritable(FIRST_PASSED_FD, True)
        os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="hold.py")
        try:
            os.execvp(self._command[0], self._command)
        except OSError as error:
            say(f"{self._command[0]}: {error.strerror}")
        os._exit(127)

    def _note(self, number: int, _: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._is_stopping = True
        elif number == signal.SIGUSR2:
            if self._is_asked_for or not self._pid:
                return  # a second one would end running answers
            self._is_asked_for = True
        if not self._pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM if number == signal.SIGUSR2 else number)


def say(text: str) -> None:
    """A line for who looks after it."""
    sys.stderr.write(f"hold.py: {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Return the exit code."""
    if len(sys.argv) < 3 or not sys.argv[1].rpartition(":")[2].isdigit():
        say("usage: hold.py HOST:PORT COMMAND [ARGUMENT ...]")
        return 2
    try:
        holder = Holder(sys.argv[1], sys.argv[2:])
    except OSError as error:
        say(f"{sys.argv[1]} cannot be had: {error.strerror or error}")
        return 1
    return holder.run()


if __name__ == "__main__":
    sys.exit(main())
