"""Calibrations on the disk: a small file each, whose name is the digest of what was measured.

Must not decide anything. Whatever is wrong with a file, it is as if it were not there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from worker.contract import EngineOptions
from worker.engine.calibration import Calibration, Subject, from_json

log = logging.getLogger(__name__)


def subject_of(model_path: str, options: EngineOptions, *, library: str, cpu: str, num_threads: int) -> Subject:
    """Return what would be measured. Raises: OSError when the file is not there."""
    path = Path(model_path)
    found = path.stat()
    return Subject(
        model_file=path.name,
        model_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        library=library,
        cpu=cpu,
        num_threads=num_threads,
        max_rows=min(options.batch_size, options.ubatch_size),
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        swa_full=options.swa_full,
    )


def read_calibration(folder: Path, subject: Subject) -> Calibration | None:
    """Return what was measured of `subject` before; None if nothing was, or nothing usable."""
    try:
        text = _path(folder, subject).read_bytes()
    except OSError:
        return None
    return from_json(text, subject)


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Have the calibration on the disk, whole or not at all; a disk that cannot be written to is only logged."""
    path = _path(folder, calibration.subject)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(calibration.to_json(), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        log.warning("the calibration cannot be kept and will be repeated after the next load: %s", error)


def _path(folder: Path, subject: Subject) -> Path:
    text = json.dumps(dataclasses.asdict(subject), sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
