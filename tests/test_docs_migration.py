"""docs/migration.md tells what `corral import` really makes of options, files and instructions."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from router.catalog_keys import MODEL_KEYS
from router.importing.flags import apply_options, read_words
from router.importing.imported import Imported, ImportedModel
from router.importing.llama_swap import read_llama_swap
from router.importing.modelfile import read_modelfile
from router.importing.writing import write_catalog
from tests.test_architecture import ROOT

PAGE = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")


def marked(name: str) -> str:
    """Return what stands between the comments of this name."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def blocks(name: str) -> list[str]:
    """Return the code blocks between the comments of this name."""
    return re.findall(r"```[a-z]*\n(.*?)```", marked(name), re.DOTALL)


def rows() -> list[tuple[str, str]]:
    found = re.findall(r"^\| `(.+?)` \| `(.+)` \|$", marked("llama-server"), re.MULTILINE)
    assert len(found) == marked("llama-server").count("\n|") - 1, "every row has a command and keys"
    return found


def body_of(text: str) -> str:
    """Return a written catalogue without its first line, which says where it comes from."""
    return text.partition("\n")[2].strip()


@pytest.mark.parametrize(("command", "keys"), rows())
def test_row_of_the_table_is_what_the_import_makes_of_it(command: str, keys: str) -> None:
    model = ImportedModel("m")
    apply_options(model, read_words(shlex.split(command))[0])
    expected = yaml.safe_load(f"{{{keys}}}")
    aliases = model.options.get("aliases")
    found = model.options | ({"aliases": list(aliases)} if aliases else {})
    assert found == expected
    assert set(expected) <= MODEL_KEYS.keys()


@pytest.mark.parametrize(
    "flag", re.findall(r"`(--[a-z-]+)`", PAGE.partition("**Left out on purpose**")[2].partition("\n\n")[0])
)
def test_option_that_is_left_out_on_purpose_changes_nothing(flag: str) -> None:
    model = ImportedModel("m")
    apply_options(
        model,
        read_words(
            ["-m", "a.gguf", flag, "x"] if flag in ("--host", "--port", "--api-key") else ["-m", "a.gguf", flag]
        )[0],
    )
    assert model.options == {"model": "a.gguf"}
    assert [note for note in model.notes if "not copied" not in note] == []


@pytest.mark.parametrize(
    "flag", re.findall(r"`(--[a-z-]+)`", PAGE.partition("**Not there yet**")[2].partition(". They")[0])
)
def test_option_that_is_not_there_yet_is_named(flag: str) -> None:
    model = ImportedModel("m")
    apply_options(model, read_words(["-m", "a.gguf", flag, "x"])[0])
    assert any(flag in note for note in model.notes)


def test_example_of_llama_swap_becomes_what_the_page_shows() -> None:
    given, shown = blocks("llama-swap")
    assert body_of(write_catalog(read_llama_swap(given))) == shown.strip()


def test_example_of_a_modelfile_becomes_what_the_page_shows() -> None:
    given, shown = blocks("modelfile")
    imported: Imported = read_modelfile(given, "llama3.2")
    assert body_of(write_catalog(imported)) == shown.strip()
