"""Where the Hugging Face Hub's files lie on this machine: the cache that all its clients share.

Owns reading that cache. Never imports `huggingface_hub` (it takes long and the router stays light), never
touches the network: `fetch/hub.py` downloads.

Source: the cache layout that huggingface_hub documents, and its environment variables.

    <cache>/models--OWNER--REPO/refs/<revision>                     a commit
                               /snapshots/<commit>/<file>           a link to a blob
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from router.file_names import NoSuchFile, all_parts, choose_quant
from router.references import HubReference

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})


def hub_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that huggingface_hub uses under this environment."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return _expanded(environ[name])
    if environ.get("HF_HOME"):
        return _expanded(environ["HF_HOME"]) / "hub"
    return _expanded(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def is_hub_offline(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user forbade the Hub's clients the network (`HF_HUB_OFFLINE`)."""
    return (environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def repo_folder(cache_dir: Path, reference: HubReference) -> Path:
    """Return the cache folder of a repository."""
    return cache_dir / f"models--{reference.owner}--{reference.repo}"


def locate_hub(reference: HubReference, cache_dir: Path) -> Path | None:
    """Return the model's (first) file if all of it is in the cache, None if it must be fetched.

    A file that is here is used without asking whether the branch has moved on.
    """
    for snapshot in _snapshots(repo_folder(cache_dir, reference), reference.revision):
        if reference.file is not None:
            parts = all_parts(reference.file)
        else:
            try:
                parts = choose_quant(_files(snapshot), reference.quant or "", str(snapshot))
            except NoSuchFile:
                continue
        if all((snapshot / part).is_file() for part in parts):
            return snapshot / parts[0]
    return None


def _snapshots(repo: Path, revision: str | None) -> list[Path]:
    """Return the snapshot folders that serve `revision`, the best first; of `main`, older ones do too."""
    snapshots = repo / "snapshots"
    if revision is not None and _COMMIT.fullmatch(revision):
        return [snapshots / revision]
    try:
        commit = (repo / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = ""
    found = [snapshots / commit] if _COMMIT.fullmatch(commit) else []
    if revision is None:
        found += [folder for folder in _newest_first(snapshots) if folder not in found]
    return found


def _newest_first(snapshots: Path) -> list[Path]:
    try:
        with os.scandir(snapshots) as entries:
            dated = [(entry.stat().st_mtime, Path(entry.path)) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return [path for _, path in sorted(dated, reverse=True)]


def _files(snapshot: Path) -> list[str]:
    return [
        (Path(parent) / name).relative_to(snapshot).as_posix()
        for parent, _, names in os.walk(snapshot)  # which passes over a folder that is being removed
        for name in names
    ]


def _expanded(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()
