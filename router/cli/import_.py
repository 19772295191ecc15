"""`corral import`: makes a models.yaml of another server's configuration.

Owns which reader takes the file, and where the result goes. Nothing that the file names is run.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click

from router.cli.formats import counted
from router.cli.output import CommandFailed, ExitCode, json_option, note, print_json, say

_MAX_BYTES = 2**20
_KINDS = ("llama-swap", "llama-server", "ollama")
_FROM = re.compile(r"^FROM[ \t]+\S+[ \t]*$", re.MULTILINE)
_SECTION = re.compile(r"^\s*\[[^\]\n]+\]\s*$", re.MULTILINE)


@click.command("import")
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it there; without it: print it.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--kind", type=click.Choice(_KINDS), help="What FILE is; without it: as it looks.")
@click.option("--command", metavar="TEXT", help="A command line of llama-server, instead of FILE.")
@click.option("--name", help="Name of the model of a command line or a Modelfile.")
@json_option
def import_(
    file: Path | None,
    output: Path | None,
    force: bool,
    kind: str | None,
    command: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Make a models.yaml of FILE: llama-swap's config.yaml, llama-server's presets (.ini), or an Ollama Modelfile.

    What cannot be carried over stands in comments, with the reason. Nothing in FILE is run.
    """
    from router.importing.imported import NotImportable
    from router.importing.writing import write_catalog

    if (file is None) == (command is None):
        raise CommandFailed("give a file, or a command line of llama-server with --command", ExitCode.USAGE)
    if output is not None and output.exists() and not force:
        raise CommandFailed(f"{output} is there already: choose another name, or replace it with --force")
    try:
        imported = _of_command(command, name) if file is None else _of_file(file, kind, name)
    except NotImportable as error:
        raise CommandFailed(f"{file or 'the command'} cannot be imported: {error}") from None
    if not any(model.is_usable for model in imported.models):
        reasons = [f"{model.name}: {one}" for model in imported.models for one in model.notes]
        raise CommandFailed("\n".join(["nothing in it can be carried over", *reasons]))
    text = write_catalog(imported)
    problems = _problems(text, output)
    notes = [{"model": None, "text": one} for one in imported.notes]
    notes += [{"model": model.name, "text": one} for model in imported.models for one in model.notes]
    if output is not None:
        _write(output, text, force=force)
    names = [model.name for model in imported.models if model.is_usable]
    if as_json:
        left = [model.name for model in imported.models if not model.is_usable]
        shown: dict[str, Any] = {"output": None if output is None else str(output), "text": text, "models": names}
        print_json(shown | {"left_out": left, "notes": notes, "problems": problems})
        return
    if output is None:
        click.echo(text, nl=False)
    for one in notes:
        note(f"corral: {one['model']}: {one['text']}" if one["model"] else f"corral: {one['text']}")
    for problem in problems:
        note(f"corral: to be corrected by hand: {problem}")
    if output is not None:
        said = f"{output}: {counted(len(names), 'model')}"
        say(f"{said}, {counted(len(notes), 'note')} in comments; next: corral check {output}")


def _write(output: Path, text: str, *, force: bool) -> None:
    """Raises: CommandFailed, also when somebody has made the file meanwhile."""
    try:
        with output.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise CommandFailed(f"{output} cannot be written: {error.strerror or error}") from None


def _of_command(command: str | None, name: str | None) -> Any:
    from router.importing.flags import apply_options, read_words
    from router.importing.imported import Imported, ImportedModel, NotImportable

    try:
        words = shlex.split((command or "").replace("\\\n", " "))
    except ValueError as error:
        raise NotImportable(str(error)) from None
    first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    pairs, others = read_words(words[first:])
    model = ImportedModel(name or "model")
    apply_options(model, pairs)
    for word in others:
        model.note(f"{word!r} is no option, and was left out")
    if name is None and "model" in model.options:
        model.name = _name_of(str(model.options["model"]))
    if not model.is_usable:
        model.note("it names no model (-m FILE or -hf OWNER/REPO)")
    return Imported("a command line of llama-server", [model])


def _of_file(file: Path, kind: str | None, name: str | None) -> Any:
    from router.importing.imported import NotImportable
    from router.importing.llama_swap import read_llama_swap
    from router.importing.modelfile import read_modelfile
    from router.importing.presets import read_presets

    try:
        with file.open("rb") as source:
            raw = source.read(_MAX_BYTES + 1)
    except OSError as error:
        raise NotImportable(error.strerror or str(error)) from None
    if len(raw) > _MAX_BYTES:
        raise NotImportable("it is larger than a megabyte")
    text = raw.decode("utf-8-sig", "replace")
    match kind or kind_of(file.name, text):
        case "llama-swap":
            return read_llama_swap(text)
        case "llama-server":
            return read_presets(text)
        case "ollama":
            return read_modelfile(text, name or _name_of(file.name))
        case _:
            raise NotImportable("it does not look like any that is known; name it with --kind")


def kind_of(file_name: str, text: str) -> str | None:
    """Return what a file is by its name and its look; None = it cannot be told."""
    lower = file_name.lower()
    if lower.endswith((".ini", ".cfg")):
        return "llama-server"
    if lower.endswith((".yaml", ".yml", ".json")):
        return "llama-swap"
    if "modelfile" in lower or _FROM.search(text):
        return "ollama"
    return "llama-server" if _SECTION.search(text) else None


def _name_of(source: str) -> str:
    from router.cli.pull import suggested_name

    file = source.rstrip("/").rpartition("/")[2].partition(":")[0]
    return suggested_name(file if file.lower().endswith(".gguf") else f"{file}.gguf")


def _problems(text: str, output: Path | None) -> list[str]:
    """Return what `corral check` would say against the text; the files that it names need not be here."""
    from router.catalog_parser import read_catalog
    from router.checking import rule_problems

    reading = read_catalog(text, (output or Path("models.yaml")).absolute())
    found = reading.problems or rule_problems(reading.catalog, reading)
    return [problem.describe(None) for problem in found]
