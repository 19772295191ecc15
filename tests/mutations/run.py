"""`make mutate`: every kept fault is put into a copy of the project, and some test must fail for it.

ONLY=part-of-a-name tries some of them, JOBS=number says how many at a time (default: one for each core, at most four).
Ends with 1 if a fault survives or has no place in the source any more, and with 2 if the tests fail without any.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutations.kept import ROOT, DoesNotApply, Mutation, kept_mutations

NUM_HISTORIES = 150
"""Of each kind, the same ones for every fault; nearly all faults fall to an example long before."""

MAX_BYTES = 4 << 30
"""Of memory that one run of tests may take."""

COPIED = ("router", "worker", "tests", "pyproject.toml")
PROPERTIES = "tests/router/test_fleet_properties.py"
MARKERS = "tests/worker/engine/test_markers.py"
FLAGS = ("-x", "-q", "--tb=no", "-rf", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning")
FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)


class Verdict(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    NO_PLACE = "NO PLACE"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one fault, and which test noticed it."""

    mutation: Mutation
    verdict: Verdict
    detail: str
    took_s: float


class Copy:
    """A copy of the project that holds at most one fault at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
            else:
                shutil.copy2(source, folder / name)
        router = folder / "tests" / "router"
        names = (
            "test_placement*.py",
            "test_waiting.py",
            "test_fair_share.py",
            "test_lifecycle.py",
            "test_threads.py",
            "test_fleet*.py",
        )
        found = [path for pattern in names for path in sorted(router.glob(pattern))]
        examples = [str(path.relative_to(folder)) for path in found]
        examples.remove(PROPERTIES)
        self._stages = (examples, [PROPERTIES])
        self.timeout_s = 600.0

    def read(self, file: str) -> str:
        """Return what `file` holds."""
        return (self._folder / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        """`file` holds `text`, and nothing that was compiled before is used for it."""
        path = self._folder / file
        path.write_text(text, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def failing_test(self, *, by_histories: bool = False, of_cells: bool = False) -> str | None:
        """Return the first test that fails; None = all pass.

        Examples before histories or those alone; for a fault of the worker's, the marker test alone.
        """
        for files in [[MARKERS]] if of_cells else self._stages[by_histories:]:
            command = [sys.executable, "-m", "pytest", *FLAGS, *files]
            environ = {
                **os.environ,
                "PYTHONPATH": str(self._folder),
                "FLEET_HISTORIES": str(NUM_HISTORIES),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # none is needed, and importing them takes longer than the tests
            }
            try:
                done = subprocess.run(
                    command,
                    cwd=self._folder,
                    env=environ,
                    capture_output=True,
                    text=True,
                    timeout=self.timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"{' '.join(files)[:40]}… took longer than {self.timeout_s:.0f} s"
            if done.returncode != 0:
                found = FAILED.search(done.stdout)
                return found[1] if found else (done.stdout + done.stderr)[-2000:]
        return None


def try_one(mutation: Mutation, copies: queue.Queue[Copy]) -> Result:
    """Return what became of `mutation`; the copy that it was tried in is as it was before."""
    begun_s = time.monotonic()
    copy = copies.get()
    text = copy.read(mutation.file)  # as it was when all began, whoever edits the project meanwhile
    try:
        copy.write(mutation.file, mutation.applied_to(text))
        test = copy.failing_test(by_histories=mutation.by_histories, of_cells=mutation.is_of_cells)
    except DoesNotApply as error:
        return Result(mutation, Verdict.NO_PLACE, str(error), 0.0)
    finally:
        copy.write(mutation.file, text)
        copies.put(copy)
    took_s = time.monotonic() - begun_s
    if test is None:
        return Result(mutation, Verdict.SURVIVED, f"{mutation.file}: {mutation.why}", took_s)
    return Result(mutation, Verdict.KILLED, test, took_s)


def say(line: str) -> None:
    """`line` is on the terminal."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Return the exit status."""
    only = os.environ.get("ONLY", "")
    mutations = [mutation for mutation in kept_mutations() if only in mutation.name]
    if not mutations:
        say(f"No mutation has '{only}' in its name.")
        return 2
    with contextlib.suppress(ValueError, OSError):  # a fault may loop for ever and take memory meanwhile
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    jobs = min(int(os.environ.get("JOBS", "0")) or min(os.cpu_count() or 1, 4), len(mutations))
    with tempfile.TemporaryDirectory(prefix="corral-mutate-") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        made = [Copy(Path(folder) / str(number)) for number in range(jobs)]
        begun_s = time.monotonic()
        for of_cells in sorted({mutation.is_of_cells for mutation in mutations}):
            failing = made[0].failing_test(of_cells=of_cells)
            if failing is not None:
                say(f"The tests fail without any mutation: {failing}")
                return 2
        timeout_s = 30.0 + 5.0 * (time.monotonic() - begun_s)
        for copy in made:
            copy.timeout_s = timeout_s
            copies.put(copy)
        say(f"{len(mutations)} mutations, {jobs} at a time.")
        results = []
        with ThreadPoolExecutor(jobs) as pool:
            for result in pool.map(lambda mutation: try_one(mutation, copies), mutations):
                results.append(result)
                say(f"{result.verdict:<9} {result.mutation.name:<55} {result.took_s:5.1f} s  {result.detail}")
    bad = [result for result in results if result.verdict is not Verdict.KILLED]
    killed = len(results) - len(bad)
    say(f"{killed} of {len(results)} killed in {time.monotonic() - begun_s:.0f} s.")
    for result in bad:
        say(f"{result.verdict}: {result.mutation.name}: {result.detail}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
