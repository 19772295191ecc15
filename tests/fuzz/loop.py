"""The process that tries inputs on one target for some time: `python -m tests.fuzz.loop TARGET SECONDS FOLDER`.

With atheris inputs that reach new branches are kept and changed further; where that is not installed (it exists for
Linux on x86-64 only) changes of the known inputs have to do. Owns the folder: what is in work, what was found, figures.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.mutation import Mutator
from tests.fuzz.trial import attempt

try:
    import atheris
except ImportError:
    atheris = None

CPU_S = 4.0
"""For one input while its branches are counted, which takes some times as long; it is tried again without."""
STUCK_S = 60
"""After so long in native code, which nothing can interrupt, the process ends."""
SUBJECTS = (
    "catalog",
    "gguf",
    "events",
    "framing",
    "tool_calls",
    "detokenizer",
    "prompt_files",
    "importing",
    "templates",
)


def subject_of(name: str) -> Any:
    """Return the target of this name."""
    return importlib.import_module(f"tests.fuzz.parsers.{name}").SUBJECT


class Run:
    """Tries inputs, and keeps the shortest of those that show the same."""

    def __init__(self, check: Callable[[bytes], None], folder: Path) -> None:
        self._check = check
        self._findings = folder / "findings"
        self._figures = folder / "figures.json"
        self._findings.mkdir(parents=True, exist_ok=True)
        self._sizes: dict[str, int] = {}
        self._num_tried = 0
        self._began_s = time.monotonic()
        self._told_s = 0.0

    def try_one(self, data: bytes) -> None:
        """Try one input."""
        self._num_tried += 1
        finding = attempt(self._check, data, CPU_S)
        if finding is not None and len(data) < self._sizes.get(finding.key, len(data) + 1):
            self._sizes[finding.key] = len(data)
            (self._findings / f"{finding.key}.bin").write_bytes(data)
            (self._findings / f"{finding.key}.txt").write_text(finding.told, "utf-8", "backslashreplace")
        if time.monotonic() - self._told_s > 0.5:
            self.tell()

    def tell(self) -> None:
        """Write the figures: a process of libFuzzer's ends without a last word."""
        self._told_s = time.monotonic()
        told = {"inputs": self._num_tried, "seconds": round(self._told_s - self._began_s, 1)}
        fresh = self._figures.with_suffix(".new")
        fresh.write_text(json.dumps(told))
        os.replace(fresh, self._figures)


def main(name: str, seconds: float, folder: Path) -> None:
    """Try inputs for so long. With atheris this does not return."""
    if atheris is None:
        subject = subject_of(name)
    else:
        with atheris.instrument_imports(include=["router", "worker"], enable_loader_override=False):
            subject = subject_of(name)
    kept = Path(__file__).parent / "corpus" / name
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    known = [*subject.seeds(), *(path.read_bytes() for path in sorted(kept.glob("*.bin")))]
    known = [one[: subject.max_size] for one in known]
    for number, one in enumerate(known):
        (work / f"seed-{number:04}").write_bytes(one)
    run = Run(subject.check, folder)
    for one in known:
        run.try_one(one)
    mutator = Mutator(subject.words, known)
    if atheris is None:
        _go_on_without_guide(run, mutator, known, subject.max_size, seconds)
        return

    def changed(data: bytes, max_size: int, number: int) -> bytes:
        if number % 3 == 0:
            return bytes(atheris.Mutate(data, len(data)))
        return mutator.change(data, random.Random(number), max_size)

    options = [f"-max_total_time={max(1, int(seconds))}", f"-max_len={subject.max_size}", f"-timeout={STUCK_S}"]
    options += ["-rss_limit_mb=3000", f"-artifact_prefix={folder}/stuck-", "-verbosity=0", "-print_final_stats=0"]
    atheris.Setup([sys.argv[0], *options, str(work)], run.try_one, custom_mutator=changed, internal_libfuzzer=True)
    atheris.Fuzz()


def _go_on_without_guide(run: Run, mutator: Mutator, known: list[bytes], max_size: int, seconds: float) -> None:
    dice = random.Random()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        run.try_one(mutator.change(dice.choice(known), dice, max_size))
    run.tell()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
