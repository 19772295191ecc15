"""A process knows its age to a clock tick or two."""

from __future__ import annotations

import subprocess
import sys
import time

from worker.birth import process_age_s


def test_age_lies_between_what_is_seen_from_inside_and_from_outside() -> None:
    code = "import time; from worker.birth import process_age_s; time.sleep(0.1); print(process_age_s())"
    started_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    outside_s = time.monotonic() - started_s
    assert 0.1 - 0.02 <= float(done.stdout) <= outside_s + 0.02


def test_age_grows_as_time_does() -> None:
    before_s, age_s = time.monotonic(), process_age_s()
    time.sleep(0.05)
    assert abs((process_age_s() - age_s) - (time.monotonic() - before_s)) < 0.02
