"""What names of model files tell: split sets, quantisations, patterns.

Pure text. Must not look at the disk: callers bring lists of names, whose folders are separated by "/".
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
# "Q4_K" must not be found in "Q4_K_M", nor "Q4_0" in "Q4_0_4_4": those are other quantisations.
_LONGER_QUANT = r"(?![A-Za-z0-9]|_(?:XXS|XS|S|M|L|XL|NL|K|\d+)(?![A-Za-z0-9]))"
_MAX_LISTED = 12


class NoSuchFile(ValueError):
    """No file, or more than one, fits; the message lists the candidates."""


@dataclass(frozen=True, slots=True)
class SplitName:
    """The name of one part of a model that is split into `count` files."""

    stem: str
    number: int
    count: int
    suffix: str

    def part(self, number: int) -> str:
        """Return the name of part `number`, counted from 1."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}{self.suffix}"

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.part(number) for number in range(1, self.count + 1))


def parse_split_name(name: str) -> SplitName | None:
    """Return how `name` numbers its part, None if it is not a part of a split model."""
    match = _SPLIT.fullmatch(name)
    if match is None:
        return None
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        return None
    return SplitName(match["stem"], number, count, match["suffix"])


def all_parts(name: str) -> tuple[str, ...]:
    """Return the names of all files of the model that begins with `name`: itself alone if it is not split."""
    split = parse_split_name(name)
    return (name,) if split is None else split.parts


def match_names(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that `pattern` means, sorted.

    The whole path wins over a bare file name in any folder, and that over a pattern. A pattern without "/" is
    compared with the file name, one with "/" folder by folder.
    """
    listed = sorted(set(names))
    if pattern in listed:
        return [pattern]
    if "/" not in pattern:
        same = [name for name in listed if _base(name) == pattern]
        return same or [name for name in listed if fnmatch.fnmatchcase(_base(name), pattern)]
    wanted = pattern.split("/")
    return [
        name
        for name in listed
        if len(parts := name.split("/")) == len(wanted)
        and all(fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))
    ]


def choose_model(names: Iterable[str], pattern: str, place: str) -> tuple[str, ...]:
    """Return the one file that `pattern` means, or all parts if it is split. Raises: NoSuchFile."""
    listed = sorted(set(names))
    found = match_names(listed, pattern)
    sets = _group(found)
    if len(sets) == 1:
        return _complete(sets[0], listed, place)
    if not sets:
        raise NoSuchFile(f"{place} has no file {pattern}; {_candidates(listed)}")
    raise NoSuchFile(f"{pattern} means several files of {place}: {_listing([s[0] for s in sets])}; name one")


def choose_quant(names: Iterable[str], quant: str, place: str) -> tuple[str, ...]:
    """Return the one model file (or all parts of it) that carries `quant`. Raises: NoSuchFile.

    Projector files (`mmproj`) do not count. The file name decides; folder names only if no file name has it.
    """
    listed = [name for name in sorted(set(names)) if is_model_name(name)]
    carries = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quant)}{_LONGER_QUANT}", re.IGNORECASE)
    found = [name for name in listed if carries.search(_base(name).removesuffix(".gguf"))]
    if not found:
        found = [name for name in listed if any(carries.search(part) for part in name.split("/")[:-1])]
    sets = _group(found)
    if len(sets) == 1:
        return _complete(sets[0], listed, place)
    if not sets:
        raise NoSuchFile(f"{place} has no model with the quantisation {quant}; {_candidates(listed)}")
    raise NoSuchFile(
        f"several models of {place} carry {quant}: {_listing([s[0] for s in sets])}; name the file instead"
    )


def is_model_name(name: str) -> bool:
    """Return whether `name` looks like a model: a GGUF file that is not a projector."""
    return name.lower().endswith(".gguf") and "mmproj" not in _base(name).lower()


def joined_name(first_part: str, package: str) -> str:
    """Return a `.gguf` file name for parts that begin with `first_part` of `package`."""
    match = re.match(r"(.+?\.gguf)(?:[.\-_].*)?$", _base(first_part), re.IGNORECASE)
    if match is not None:
        return match[1]
    return re.sub(r"[-_.]?part[-_.]?\d+$", "", package) + ".gguf"


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _group(found: Sequence[str]) -> list[tuple[str, ...]]:
    """Return one tuple for each model among `found`: its name, or the names of all its parts."""
    sets: dict[str, tuple[str, ...]] = {}
    for name in found:
        parts = all_parts(name)
        sets[parts[0]] = parts
    return list(sets.values())


def _complete(parts: tuple[str, ...], listed: Sequence[str], place: str) -> tuple[str, ...]:
    missing = [part for part in parts if part not in listed]
    if missing:
        raise NoSuchFile(f"{place} lacks {_listing(missing)}, without which {parts[0]} cannot be loaded")
    return parts


def _candidates(listed: Sequence[str]) -> str:
    models = [name for name in listed if is_model_name(name)]
    if models:
        return f"it has {_listing(models)}"
    return f"it has no GGUF file at all, only {_listing(listed)}" if listed else "it has no files at all"


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_LISTED])
    return shown if len(names) <= _MAX_LISTED else f"{shown} and {len(names) - _MAX_LISTED} more"
