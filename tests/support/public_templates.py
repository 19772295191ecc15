"""The chat templates that llama.cpp's source carries, those of many families of models: fetched once by pip.

They come out of llama-cpp-python's source package, in the version that is installed, into the user's cache folder.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Final

from router.sources import default_cache_dir

_PACKAGE: Final = "llama-cpp-python"
_FOLDER: Final = "vendor/llama.cpp/models/templates"


@functools.cache
def public_templates() -> dict[str, str]:
    """Return the source of each template by the name of its file without the ending."""
    version = importlib.metadata.version(_PACKAGE)
    path = default_cache_dir() / "converted" / f"templates-{version}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / "made.json"
            made.write_text(json.dumps(_templates_in(_download(version, Path(folder)))), encoding="utf-8")
            os.replace(made, path)
    templates: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return templates


def _download(version: str, folder: Path) -> Path:
    """Return the source package. pip prepares what tells its dependencies, which takes half a minute."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--no-binary", _PACKAGE, "--dest", str(folder), f"{_PACKAGE}=={version}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(folder)})
    (archive,) = folder.glob("*.tar.gz")
    return archive


def _templates_in(archive: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name)
            if path.suffix == ".jinja" and str(path.parent).endswith(_FOLDER):
                content = members.extractfile(member)
                assert content is not None
                found[path.stem] = content.read().decode()
    return dict(sorted(found.items()))
