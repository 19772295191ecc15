"""What lies on the disk -> a `Catalog`: a `models.yaml`, one `.gguf` file, or a folder of them.

Owns reading the catalogue and its chat template files, and the names of models that no catalogue names.
Must not understand YAML (`catalog_parser.py` does) nor open a model file.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from router.catalog import MAX_NAME_LENGTH, Catalog, ModelSpec, Remote
from router.catalog_parser import CatalogReading, read_catalog
from router.catalog_problems import CatalogError, Problem
from router.catalog_scalars import Found, resolve_path
from router.fetch.protocol import SourceError
from router.file_names import all_parts, is_model_name, parse_split_name
from router.references import PathReference, Reference, parse_reference

Locate = Callable[[Reference, Path], Path | None]
"""`ModelStore.locate`: the file if it is on this machine, None if it must be fetched; raises SourceError if neither."""

MAX_CATALOG_BYTES = 8 * 2**20
MAX_TEMPLATE_BYTES = 2**20


def load_catalog(path: Path, locate: Locate | None = None, environ: Mapping[str, str] = os.environ) -> Catalog:
    """Return the catalogue that `path` is: a `.yaml` or `.yml` file, a `.gguf` file or a folder of them.

    A model whose chat template or key for another server, or with `locate` whose model file, is missing carries that
    as its `problem`.
    Raises: CatalogError with all problems of the text.
    """
    reading = _read(path.absolute())
    if reading.problems:
        raise CatalogError(reading.problems, path)
    return _complete(reading, locate, environ)[0]


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that a look at a catalogue tells."""

    catalog: Catalog
    """As much of it as can be understood."""
    problems: tuple[Problem, ...]
    """In the order of the text; () = it can be served as it is."""
    is_sound: bool
    """Nothing is wrong with the text itself."""
    reading: CatalogReading


def examine(path: Path, locate: Locate | None = None, environ: Mapping[str, str] = os.environ) -> Examined:
    """Return what `path` says, and everything that is wrong with it. Never raises."""
    return _examined(_read(path.absolute()), locate, environ)


def examine_text(
    text: str, path: Path, locate: Locate | None = None, environ: Mapping[str, str] = os.environ
) -> Examined:
    """Return the same as if `text` stood in the `.yaml` file `path`. Never raises."""
    return _examined(read_catalog(text.removeprefix("\ufeff").replace("\r\n", "\n"), path.absolute()), locate, environ)


def _examined(reading: CatalogReading, locate: Locate | None, environ: Mapping[str, str]) -> Examined:
    catalog, problems = _complete(reading, locate, environ)
    return Examined(catalog, in_order([*reading.problems, *problems]), not reading.problems, reading)


def check(path: Path, locate: Locate | None = None, environ: Mapping[str, str] = os.environ) -> list[Problem]:
    """Return everything that is wrong with what `path` is, in the order of the text; [] = it can be served as it is."""
    return list(examine(path, locate, environ).problems)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems in the order of the text, those about the file as a whole first."""
    return tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


def _read(path: Path) -> CatalogReading:
    """Return what `path` says, with every problem that shows without looking up the files that it names."""
    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            return _read_folder(path)
        if not path.exists():
            return _unreadable(path, "there is no such file or folder")
        if suffix == ".gguf":
            return CatalogReading(_implicit(path, [path], {path.name}), ())
        if suffix not in (".yaml", ".yml"):
            return _unreadable(path, "must be a .yaml file, a .gguf file or a folder of .gguf files")
        text, problem = _read_text(path, MAX_CATALOG_BYTES)
    except OSError as error:
        return _unreadable(path, f"cannot be read: {error.strerror or error}")
    return read_catalog(text, path) if problem is None else CatalogReading(Catalog({}, path=path), (problem,))


def _unreadable(path: Path, message: str) -> CatalogReading:
    return CatalogReading(Catalog({}, path=path), (Problem("", message),))


def _read_text(path: Path, max_bytes: int) -> tuple[str, Problem | None]:
    """Return the text of a file and None, or "" and what is wrong with it. Raises: OSError."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device would block
        return "", Problem("", "is not a regular file")
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        return "", Problem("", f"is larger than {max_bytes // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n"), None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        before = raw[raw.rfind(b"\n", 0, error.start) + 1 : error.start]
        message = "is not UTF-8 text: save it with the encoding UTF-8"
        return "", Problem("", message, line, len(before.decode("utf-8", "replace")) + 1)


# --- what the catalogue names -----------------------------------------------------------------------------


def _complete(
    reading: CatalogReading, locate: Locate | None, environ: Mapping[str, str]
) -> tuple[Catalog, list[Problem]]:
    """Return the catalogue with template files read and problems set, and those problems with their places."""
    templates: dict[Path, tuple[str, str | None]] = {}
    models: dict[str, ModelSpec] = {}
    problems: dict[Problem, None] = {}  # each once, in this order
    for name, spec in reading.catalog.models.items():
        places = reading.options.get(name, {})
        reasons = [] if spec.problem is None else [Problem(f"models.{name}", spec.problem)]
        text = spec.chat_template
        if spec.chat_template_file is not None:
            if spec.chat_template_file not in templates:
                templates[spec.chat_template_file] = _read_template(spec.chat_template_file)
            text, reason = templates[spec.chat_template_file]
            if reason is not None:
                reasons.append(_at(places.get("chat_template"), f"models.{name}.chat_template", reason))
        if spec.remote is not None:
            reasons += _key_problems(name, spec.remote, places.get("url_key_env"), environ)
        elif spec.problem is None and locate is not None:
            try:
                locate(parse_reference(spec.source), spec.base_dir)
            except (SourceError, OSError) as error:
                reasons.append(_at(places.get("model"), f"models.{name}.model", str(error)))
            reasons += _draft_problems(name, spec, places.get("draft_model"), locate)
            reasons += _lora_problems(name, spec, places.get("loras"), locate)
        marks = () if locate is None else _marks(spec)
        if reasons or text != spec.chat_template or marks:
            problem = "; ".join(reason.message for reason in reasons) or None
            spec = dataclasses.replace(spec, chat_template=text or None, problem=problem, file_marks=marks)  # noqa: PLW2901
        models[name] = spec
        problems |= dict.fromkeys(reasons)
    keys = tuple(
        key if key.file is None else dataclasses.replace(key, file=_expanded(key.file)) for key in reading.catalog.keys
    )
    return dataclasses.replace(reading.catalog, models=models, keys=keys), list(problems)


def _expanded(path: Path) -> Path:
    """Return the path without `~`; the home folder of a stranger stays as it is, and reading it says why."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def named_files(spec: ModelSpec) -> list[Path]:
    """Return the files of a model (its adapters' and draft model's, too) that are named by their paths, all parts."""
    sources = [spec.source, spec.draft_source, *(lora.source for lora in spec.loras)] if spec.remote is None else []
    files = []
    for source in sources:
        reference = parse_reference(source) if source else None
        if isinstance(reference, PathReference) and (path := resolve_path(reference.path, spec.base_dir)) is not None:
            files += [path.with_name(name) for name in all_parts(path.name)]
    return files


def _marks(spec: ModelSpec) -> tuple[int, ...]:
    marks: list[int] = []
    for file in named_files(spec):
        try:
            found = file.stat()
        except (OSError, ValueError):
            continue
        marks += (found.st_size, found.st_mtime_ns)
    return tuple(marks)


def _key_problems(name: str, remote: Remote, place: Found | None, environ: Mapping[str, str]) -> list[Problem]:
    if remote.key_env is None or environ.get(remote.key_env, "").strip():
        return []
    # Clients are told this too, so the address is not in it.
    message = f"the environment variable {remote.key_env} is not set; it must hold the API key for the model's server"
    return [_at(place, f"models.{name}.url_key_env", message)]


def _draft_problems(name: str, spec: ModelSpec, place: Found | None, locate: Locate) -> list[Problem]:
    if spec.draft_source is None:
        return []
    try:
        locate(parse_reference(spec.draft_source), spec.base_dir)
    except (SourceError, OSError) as error:
        return [_at(place, f"models.{name}.draft_model", f"draft model: {error}")]
    return []


def _lora_problems(name: str, spec: ModelSpec, found: Found | None, locate: Locate) -> list[Problem]:
    problems = []
    found_by_name = {one.value.name: one for one in (found.value if found is not None else ())}
    for lora in spec.loras:
        try:
            locate(parse_reference(lora.source), spec.base_dir)
        except (SourceError, OSError) as error:
            where = f"models.{name}.loras.{lora.name}"
            problems.append(_at(found_by_name.get(lora.name), where, f"LoRA adapter `{lora.name}`: {error}"))
    return problems


def _at(found: Found | None, where: str, message: str) -> Problem:
    if found is None:
        return Problem(where, message)
    return Problem(found.where, message, found.place.line, found.place.column)


def _read_template(path: Path) -> tuple[str, str | None]:
    """Return the template's text, and why it cannot be read."""
    try:
        text, problem = _read_text(path.expanduser(), MAX_TEMPLATE_BYTES)
    except FileNotFoundError:
        text, problem = "", Problem("", "does not exist")
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the path; a home folder that is unknown
        text, problem = "", Problem("", f"cannot be read ({getattr(error, 'strerror', None) or error})")
    if problem is None and not text.strip():
        problem = Problem("", "is empty")
    if problem is None:
        return text, None
    hint = ""
    if not path.suffix:
        hint = "; `chat_template` takes a file or the template's text, not the name of a built-in template"
    return "", f"the chat template file {path} {problem.message}{hint}"


# --- catalogues that nobody wrote -------------------------------------------------------------------------


def _read_folder(folder: Path) -> CatalogReading:
    """Return every model that lies directly in `folder`. Raises: OSError."""
    names = {
        entry.name
        for entry in folder.iterdir()
        if is_model_name(entry.name) and not entry.name.startswith(".") and entry.is_file()
    }
    firsts = sorted({all_parts(name)[0] for name in names})
    if firsts:
        return CatalogReading(_implicit(folder, [folder / first for first in firsts], names), ())
    if (folder / "models.yaml").is_file():
        hint = f"; it has a catalogue, though: give {folder / 'models.yaml'}"
    elif any(folder.glob("*/*.gguf")):
        hint = "; subfolders are not searched: give one of them, or write a models.yaml"
    else:
        hint = ""
    return _unreadable(folder, f"the folder has no model in it (a file that ends in .gguf){hint}")


def _implicit(path: Path, files: list[Path], names: set[str]) -> Catalog:
    """Return a catalogue of `files`; `names` are the files that exist beside them."""
    models: dict[str, ModelSpec] = {}
    for file in files:
        split = parse_split_name(file.name)
        stem = split.stem if split is not None else file.name[: -len(".gguf")]
        base = "".join("-" if c.isspace() or c == "*" or not c.isprintable() else c for c in stem)
        base = base[: MAX_NAME_LENGTH - 4] or "model"
        name, number = base, 2
        while name in models:
            name, number = f"{base}-{number}", number + 1
        models[name] = ModelSpec(name, _printable(str(file)), file.parent, problem=_file_problem(file, names))
    return Catalog(models, path=path)


def _file_problem(file: Path, names: set[str]) -> str | None:
    """Return why a model file cannot be served, as far as its name and its neighbours' names tell."""
    if not str(file).isprintable():
        return f"the path {_printable(str(file))} contains characters that cannot be printed: rename it"
    split = parse_split_name(file.name)
    if split is None:
        return None
    if split.number != 1:
        return f"this is part {split.number} of {split.count} of a split model: give its first part, {split.part(1)}"
    missing = [part for part in split.parts if part not in names and not (file.parent / part).is_file()]
    if missing:
        return f"the split model is incomplete: {len(missing)} of {split.count} parts are missing, first {missing[0]}"
    return None


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
