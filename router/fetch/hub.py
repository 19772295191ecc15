"""A model file from the Hugging Face Hub, into the cache that all the Hub's clients share.

Owns the download: it resumes after an interruption (of the connection, or of an earlier process), checks the
digest that the Hub promises and that the result is a model, and only then lets the library link it into its
cache. Only fetch processes import this room. The access token stays inside the library.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, constants, get_token, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,  # the root of its HTTP client's errors, whichever client this release has
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from router.cache_folder import exclusive_lock, require_free_space, write_atomically
from router.fetch.protocol import DOWNLOADING, VERIFYING, FetchProgress, SourceError, without_secrets
from router.file_names import NoSuchFile, choose_model, choose_quant
from router.gguf_header import GgufError, read_gguf_header
from router.hub_source import is_hub_offline, repo_folder
from router.references import HubReference

_CHUNK_BYTES: Final = 2**20
_MAX_FAILURES: Final = 5
"""In a row, without a single byte in between."""
_FIRST_RETRY_S: Final = 0.2
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_PLAIN_BYTES: Final = constants.MAX_HTTP_DOWNLOAD_SIZE
"""Larger files are not served by plain HTTP; the library's own protocol brings them, without resuming."""
_WATCH_S: Final = 1.0
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})

Report = Callable[[FetchProgress], None]


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """One file of the repository. `etag` names its blob: the SHA-256 of large files, git's digest of others."""

    name: str
    size: int
    etag: str


def fetch_from_hub(reference: HubReference, *, is_offline: bool, report: Report) -> Path:
    """Return the model's (first) file in the Hub cache, complete and verified.

    Raises: SourceError; OSError for a disk's own trouble.
    """
    if is_offline or is_hub_offline():
        by = "offline mode" if is_offline else "HF_HUB_OFFLINE"
        raise SourceError(
            f"{reference} is not on this machine and {by} forbids to download it; fetch it once while online",
            is_permanent=True,
        )
    try:
        return _Download(reference, report).run()
    except (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _explain(error, reference) from None
    except NoSuchFile as error:
        raise SourceError(f"{reference}: {error}", is_permanent=True) from None


class _Download:
    """All files of one model, one after the other."""

    def __init__(self, reference: HubReference, report: Report) -> None:
        self._reference = reference
        self._report = report
        self._cache_dir = Path(constants.HF_HUB_CACHE)
        self._repo = repo_folder(self._cache_dir, reference)
        self._done_bytes = 0
        self._total_bytes = 0

    def run(self) -> Path:
        self._tell(DOWNLOADING, f"asking {constants.ENDPOINT} for {self._reference.repo_id}")
        commit, files = self._ask()
        self._total_bytes = sum(file.size for file in files)
        lock = self._cache_dir / ".locks" / self._repo.name / "corral.lock"
        with exclusive_lock(lock, self._waiting):
            missing = [file for file in files if not self._pointer(commit, file.name).exists()]
            have = sum(self._bytes_of(self._partial(file)) for file in missing)
            self._repo.joinpath("blobs").mkdir(parents=True, exist_ok=True)
            require_free_space(self._repo, sum(file.size for file in missing) - have, str(self._reference))
            for file in files:
                if file in missing:
                    self._bring(commit, file)
                self._done_bytes += file.size
            self._remember(commit)
        return self._pointer(commit, files[0].name)

    def _ask(self) -> tuple[str, Sequence[_RemoteFile]]:
        """Return the commit that the revision stands for, and the model's files in it."""
        reference = self._reference
        found = HfApi().model_info(
            reference.repo_id,
            revision=reference.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        listed: dict[str, _RemoteFile] = {}
        for entry in found.siblings or ():
            etag = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
            if entry.size is not None and etag is not None:
                listed[entry.rfilename] = _RemoteFile(entry.rfilename, entry.size, etag)
        if found.sha is None:
            raise SourceError(f"{constants.ENDPOINT} does not answer like a Hub; check HF_ENDPOINT")
        if reference.file is not None:
            names = choose_model(listed, reference.file, reference.repo_id)
        else:
            names = choose_quant(listed, reference.quant or "", reference.repo_id)
        return found.sha, [listed[name] for name in names]

    def _bring(self, commit: str, file: _RemoteFile) -> None:
        """Have `file` in the cache. Raises: SourceError, HTTPError."""
        blob = self._repo / "blobs" / file.etag
        if file.size > _MAX_PLAIN_BYTES:
            self._bring_by_library(commit, file)
            return
        if not blob.exists():
            partial = self._partial(file)
            self._download(commit, file, partial)
            self._verify(file, partial)
            os.replace(partial, blob)
        hf_hub_download(self._reference.repo_id, file.name, revision=commit, cache_dir=self._cache_dir)

    def _bring_by_library(self, commit: str, file: _RemoteFile) -> None:
        """Have `file` in the cache; its growth is read off the disk. Raises: SourceError, HTTPError."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(_WATCH_S):
                sizes = map(self._bytes_of, self._repo.joinpath("blobs").glob(f"{file.etag}*.incomplete"))
                self._tell(DOWNLOADING, file.name, max(sizes, default=0))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            path = hf_hub_download(self._reference.repo_id, file.name, revision=commit, cache_dir=self._cache_dir)
        finally:
            is_over.set()
            watcher.join()
        self._require_model(file, Path(path))

    def _download(self, commit: str, file: _RemoteFile, partial: Path) -> None:
        if self._bytes_of(partial) > file.size:
            partial.unlink()
        failures = 0
        while (have := self._bytes_of(partial)) < file.size:
            try:
                self._stream(commit, file, partial, have)
            except HTTPError as error:
                if isinstance(error, HfHubHTTPError) and error.response.status_code not in _PASSING:
                    raise
                failures = 0 if self._bytes_of(partial) > have else failures + 1
                if failures >= _MAX_FAILURES:
                    raise
                time.sleep(_FIRST_RETRY_S * 2**failures)
                self._tell(DOWNLOADING, f"{file.name}: the connection broke, going on", have)

    def _stream(self, commit: str, file: _RemoteFile, partial: Path, have: int) -> None:
        """Append to `partial` what the server sends from byte `have` on."""
        # By commit, not by branch: the bytes of one file must be of one version, however often it is resumed.
        url = hf_hub_url(self._reference.repo_id, file.name, revision=commit)
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with get_session().stream(
            "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            goes_on = response.status_code == 206 and (
                response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            )
            with partial.open("ab") as target:
                if have and not goes_on:  # this server sends only whole files
                    target.truncate(0)
                    have = 0
                for chunk in response.iter_bytes():
                    target.write(chunk)
                    have += len(chunk)
                    self._tell(DOWNLOADING, file.name, have)
                    if have > file.size:
                        break
        if have > file.size:
            partial.unlink()
            raise SourceError(f"{url} sends more bytes than the Hub lists; try again later")

    def _verify(self, file: _RemoteFile, partial: Path) -> None:
        """Know that `partial` is what the Hub lists, and a model; else it is deleted. Raises: SourceError."""
        if _SHA256.fullmatch(file.etag):
            digest, have = hashlib.sha256(), 0
            with partial.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    have += len(chunk)
                    self._tell(VERIFYING, file.name, have)
            if digest.hexdigest() != file.etag:
                partial.unlink()
                raise SourceError(
                    f"{file.name} of {self._reference.repo_id} arrived damaged (its SHA-256 is not the one the "
                    "Hub lists) and was deleted; try again"
                )
        self._require_model(file, partial)

    def _require_model(self, file: _RemoteFile, path: Path) -> None:
        """Know that `path` is a whole model; else it is deleted. Raises: SourceError."""
        try:
            read_gguf_header(path)
        except GgufError as error:
            path.unlink()
            raise SourceError(
                f"{file.name} of {self._reference.repo_id} is not a usable model: {error}", is_permanent=True
            ) from None

    def _remember(self, commit: str) -> None:
        """Have the branch or tag stand for `commit` in the cache, for everybody who is offline later."""
        revision = self._reference.revision or constants.DEFAULT_REVISION
        if revision != commit:
            ref = self._repo / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(ref, commit)

    def _pointer(self, commit: str, name: str) -> Path:
        return self._repo / "snapshots" / commit / name

    def _partial(self, file: _RemoteFile) -> Path:
        return self._repo / "blobs" / f"{file.etag}.corral.incomplete"

    @staticmethod
    def _bytes_of(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def _waiting(self) -> None:
        self._tell(DOWNLOADING, "waiting for another process that fetches from the same repository")

    def _tell(self, phase: str, detail: str, have: int = 0) -> None:
        self._report(FetchProgress(phase, self._done_bytes + have, self._total_bytes or None, detail))


def _explain(error: Exception, reference: HubReference) -> SourceError:
    """Return what the Hub's refusal means and what to do next."""
    repo, token = reference.repo_id, get_token()
    match error:
        case OfflineModeIsEnabled():
            message = f"{reference}: HF_HUB_OFFLINE forbids to download it"
        case GatedRepoError():
            step = "this token's account is not accepted yet" if token else "then set HF_TOKEN"
            message = f"{repo} is gated: accept its terms at {constants.ENDPOINT}/{repo}; {step}"
        case RevisionNotFoundError():
            message = f"{repo} has no revision {reference.revision or 'main'}"
        case RepositoryNotFoundError():
            step = "this token may not read it" if token else "it is private: then set HF_TOKEN"
            message = f"there is no repository {repo} at {constants.ENDPOINT}: check the spelling, or {step}"
        case HfHubHTTPError():
            return _explain_status(error, reference, token)
        case _:
            reason = without_secrets(str(error) or type(error).__name__)
            return SourceError(
                f"cannot download {reference} from {constants.ENDPOINT}: {reason}; check the network, the proxy "
                "settings and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 to use only what is here"
            )
    return SourceError(message, is_permanent=True)


def _explain_status(error: HfHubHTTPError, reference: HubReference, token: str | None) -> SourceError:
    status = error.response.status_code
    said = without_secrets(error.server_message or "").strip()
    what = f"{constants.ENDPOINT} answers {reference} with status {status}{f' ({said})' if said else ''}"
    match status:
        case 401 | 403:
            step = "check HF_TOKEN: it may be wrong, expired or without access" if token else "set HF_TOKEN"
        case 404:
            step = "check the spelling"
        case 429:
            step = "wait a while" if token else "wait a while, or set HF_TOKEN to get a higher limit"
        case _:
            step = "try again later"
    return SourceError(f"{what}; {step}", is_permanent=status in {401, 403, 404})
