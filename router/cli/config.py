"""`corral config`: the schema of models.yaml for editors, and what a configuration comes to.

Owns these two views. What keys mean is in `router/catalog_keys.py`; the schema is made of it.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli.catalog_file import fail_with_problems, file_argument, find_catalog_file, read_settings_or_fail
from router.cli.completing import complete_models
from router.cli.output import CommandFailed, json_option, note, print_json

if TYPE_CHECKING:
    from router.catalog import AliasSpec, ModelSpec, RequestRules

_SCHEMA = "models.schema.json"


@click.group()
def config() -> None:
    """Show the schema of models.yaml, or what a configuration comes to."""


@config.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it there; without it: print it.")
def schema(output: Path | None) -> None:
    """Print the JSON Schema of models.yaml, by which editors complete it and check it while you type.

    Write it to a file, and name that in the first line of models.yaml:

    \b
      corral config schema -o models.schema.json
      # yaml-language-server: $schema=./models.schema.json
    """
    text = importlib.resources.files("router").joinpath(_SCHEMA).read_text(encoding="utf-8")
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{output} cannot be written: {error.strerror}") from None
    click.echo(f"{output}: name it in the first line of models.yaml, as")
    click.echo(f"# yaml-language-server: $schema={output if output.is_absolute() else f'./{output}'}")


@config.command()
@file_argument
@click.option("--model", "name", help="Show this model alone.", shell_complete=complete_models)
@json_option
def show(file: Path | None, name: str | None, as_json: bool) -> None:
    """Show FILE with all defaults filled in: every option of every model as the server takes it.

    Values that the file sets are marked, also where they are equal to the program's own defaults.
    """
    from router.catalog_files import examine
    from router.cli.model_files import find_model, open_store

    settings = read_settings_or_fail({})
    path = find_catalog_file(file, "config show")
    found = examine(path, open_store(settings).locate)
    if not found.is_sound:
        fail_with_problems(found.reading.problems, path)
    catalog = found.catalog
    specs = list(catalog.models.values()) if name is None else [find_model(catalog, name)]
    shown = {spec.name: effective(spec) for spec in specs}
    limits = {one.name: getattr(catalog.limits, one.name) for one in dataclasses.fields(catalog.limits)}
    for spec in specs:
        if spec.problem is not None:
            note(f"corral: {spec.name}: {spec.problem}")
    if as_json:
        print_json({"default_model": catalog.default_model, "limits": limits, "models": shown})
        return
    from router.cli.config_text import write_models

    written = {name: _written(found.reading.options.get(name, {})) for name in shown}
    click.echo(write_models(path, catalog.default_model, limits, shown, written), nl=False)


def effective(spec: ModelSpec) -> dict[str, Any]:
    """Return every option of a model under its key of models.yaml, in the table's order; None = the usual."""
    from router.catalog_keys import MODEL_KEYS, ONLY_REMOTE_KEYS, REMOTE_KEYS

    is_remote = spec.remote is not None
    options: dict[str, Any] = {}
    for key in MODEL_KEYS.values():
        if key.negates is not None or (key.name not in REMOTE_KEYS if is_remote else key.name in ONLY_REMOTE_KEYS):
            continue
        options[key.name] = _value(spec, key.name, key.engine, key.default)
    return options


def _written(options: Iterable[str]) -> frozenset[str]:
    """Return the keys that a file sets for a model; one that negates another counts as that."""
    from router.catalog_keys import MODEL_KEYS

    return frozenset((MODEL_KEYS[key].negates or key) if key in MODEL_KEYS else key for key in options)


def _value(spec: ModelSpec, key: str, engine: str | None, default: Any) -> Any:
    special = _SPECIAL.get(key)
    if special is not None:
        return special(spec)
    if engine is not None:
        value = spec.engine.get(engine, default)
        return list(value) if isinstance(value, tuple) else value
    value = getattr(spec, key)
    return list(value) if isinstance(value, tuple) else value


def _gpu_layers(spec: ModelSpec) -> Any:
    if spec.is_partial_allowed:
        return "auto"
    layers = spec.engine.get("gpu_layers", -1)
    return "all" if layers == -1 else layers


def _rules(rules: RequestRules) -> dict[str, Any]:
    found = {"defaults": dict(rules.defaults), "force": dict(rules.force), "drop": list(rules.drop)}
    return {name: value for name, value in found.items() if value}


def _alias(alias: AliasSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rules := _rules(alias.request):
        options["request"] = rules
    if alias.lora:
        options["lora"] = dict(alias.lora)
    if not alias.listed:
        options["listed"] = False
    return options


def _hooks(spec: ModelSpec) -> dict[str, Any]:
    commands = {name: list(getattr(spec.hooks, name)) for name in ("before_load", "after_load", "after_unload")}
    found: dict[str, Any] = {name: words for name, words in commands.items() if words}
    return found | {"timeout_s": spec.hooks.timeout_s} if found else {}


_SPECIAL: dict[str, Any] = {
    "model": lambda spec: spec.source,
    "url": lambda spec: spec.remote.url,
    "url_model": lambda spec: spec.remote.model,
    "url_key_env": lambda spec: spec.remote.key_env,
    "aliases": lambda spec: {name: _alias(alias) for name, alias in spec.aliases.items()},
    "loras": lambda spec: {lora.name: {"model": lora.source, "scale": lora.scale} for lora in spec.loras},
    "context": lambda spec: "auto" if spec.context is None else spec.context,
    "gpu_layers": _gpu_layers,
    "device": lambda spec: None if not spec.devices else list(spec.devices),
    "hooks": _hooks,
    "request": lambda spec: _rules(spec.request),
    "env": lambda spec: dict(spec.env),
    "chat_template": lambda spec: str(spec.chat_template_file) if spec.chat_template_file else spec.chat_template,
    "chat_template_kwargs": lambda spec: dict(spec.chat_template_kwargs),
    "draft_model": lambda spec: spec.draft_source,
}
"""Keys whose value in a `ModelSpec` has another form or another name than in the file."""
