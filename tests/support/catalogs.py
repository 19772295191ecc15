"""Catalogues from pieces of YAML, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from router.catalog import Catalog, ModelSpec
from router.catalog_parser import read_catalog
from router.catalog_problems import CatalogError

PATH = Path("/srv/models.yaml")


def parse_catalog(text: str, path: Path) -> Catalog:
    """Return the catalogue that `text` describes. Raises: CatalogError with all problems."""
    reading = read_catalog(text, path)
    if reading.problems:
        raise CatalogError(reading.problems, path)
    return reading.catalog


def parse(text: str) -> Catalog:
    return parse_catalog(text, PATH)


def model(options: str, before: str = "") -> ModelSpec:
    """Return the model with `options`, one a line, and `before` at the top of the file."""
    return parse(f"{before}models:\n  m:\n    model: ./m.gguf\n{_indented(options)}").models["m"]


def problems(text: str) -> dict[str, str]:
    """Return the messages by path of keys; every one of them must have a place."""
    found = read_catalog(text, PATH).problems
    assert all(problem.line is not None and problem.column is not None for problem in found)
    return {problem.where: problem.message for problem in found}


def wrong(options: str) -> dict[str, str]:
    """Return the messages about a model with `options`, by key."""
    found = problems(f"models:\n  m:\n    model: ./m.gguf\n{_indented(options)}")
    return {where.removeprefix("models.m."): message for where, message in found.items()}


def _indented(options: str) -> str:
    return "".join(f"    {line}\n" for line in options.splitlines())
