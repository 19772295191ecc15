"""`make fuzz-parsers`: inputs that nobody has thought of, for each parser of what strangers write, one after the other.

FUZZ_S=seconds for all targets together (default 300), ONLY=name,name for some of them. What is found is shortened and
kept in `corpus/`, which the default tests read; the inputs in work stay in `.fuzz/`, so that the next run goes on from
there. Ends with 1 if anything was found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.loop import STUCK_S, SUBJECTS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WORK = ROOT / ".fuzz"
CORPUS = HERE / "corpus"


@dataclass(frozen=True)
class Outcome:
    """What one target's turn has come to."""

    name: str
    inputs: int
    seconds: float
    findings: int
    in_work: int

    def describe(self) -> str:
        return (
            f"{self.name:14}{self.inputs:>10} inputs {self.seconds:>8.1f} s {self.findings:>4} findings"
            f" {self.in_work:>6} in the corpus"
        )


def main() -> int:
    chosen = [name for name in os.environ.get("ONLY", "").split(",") if name] or list(SUBJECTS)
    unknown = [name for name in chosen if name not in SUBJECTS]
    if unknown:
        _say(f"there is no {unknown[0]}; there are {', '.join(SUBJECTS)}")
        return 2
    seconds = float(os.environ.get("FUZZ_S", "300")) / len(chosen)
    outcomes = []
    for name in chosen:
        outcomes.append(_run(name, seconds))
        _say(outcomes[-1].describe())
    return int(any(one.findings for one in outcomes))


def _run(name: str, seconds: float) -> Outcome:
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "findings", ignore_errors=True)
    for old in [*folder.glob("stuck-*"), folder / "figures.json"]:
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.loop", name, str(seconds), str(folder)]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            code = process.wait(seconds + 2 * STUCK_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    num_findings = sum(_keep(name, path) for path in sorted((folder / "findings").glob("*.bin")))
    if code or not (folder / "figures.json").exists():
        num_findings += 1
        told = (folder / "output.txt").read_text("utf-8", "replace")[-3000:]
        stuck = ", ".join(str(path) for path in folder.glob("stuck-*"))
        _say(f"{name}: the process ended with {code}; its input: {stuck or 'unknown'}\n{told}")
    figures = json.loads((folder / "figures.json").read_text()) if (folder / "figures.json").exists() else {}
    in_work = sum(1 for _ in (folder / "work").iterdir())
    return Outcome(name, figures.get("inputs", 0), figures.get("seconds", 0.0), num_findings, in_work)


def _keep(name: str, path: Path) -> bool:
    """Shorten an input that has shown something and put it beside the tests; return whether it shows it again."""
    command = [sys.executable, "-m", "tests.fuzz.minimise", name, str(path)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode == 1 and not told.stderr:  # it only took long because its branches were counted
        return False
    key, _, rest = told.stdout.partition("\n")
    kept = CORPUS / name / f"{key or path.stem}.bin"
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, kept)
    _say(f"{name}: {kept.relative_to(ROOT)}\n{rest or told.stderr}")
    return True


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
