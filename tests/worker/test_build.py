"""The probe tells what the installed build of llama.cpp is, for whoever looks for faults in it."""

from __future__ import annotations

import json
import subprocess
import sys

WITHIN_S = 60.0


def test_build_is_told_with_its_backends_and_features() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.probe"],
        input=b'{"ask": "build"}\n',
        capture_output=True,
        timeout=WITHIN_S,
        check=True,
    )
    build = json.loads(done.stdout)
    assert build["version"][0].isdigit()
    assert "CPU" in build["backends"]
    assert build["library_folder"]
    assert all("=" in feature for feature in build["features"])
    assert isinstance(build["supports_gpu"], bool)
