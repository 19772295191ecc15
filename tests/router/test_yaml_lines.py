"""YAML text -> nodes with places: what is accepted, what is refused, and what is said about it."""

from __future__ import annotations

from typing import Any, assert_never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.yaml_lines import MAX_DEPTH, Place, YamlList, YamlMap, YamlNode, YamlScalar, read_yaml


def plain(node: YamlNode | None) -> Any:
    match node:
        case None:
            return None
        case YamlScalar():
            return node.value
        case YamlList():
            return [plain(item) for item in node.items]
        case YamlMap():
            return {key: plain(entry.value) for key, entry in node.entries.items()}
        case _:
            assert_never(node)


def read(text: str) -> Any:
    document = read_yaml(text)
    assert not document.problems
    return plain(document.root)


def only_problem(text: str) -> tuple[str, str, int, int]:
    (problem,) = read_yaml(text).problems
    return problem.where, problem.message, problem.place.line, problem.place.column


def test_every_key_and_value_keeps_its_line_and_column() -> None:
    root = read_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n").root
    assert isinstance(root, YamlMap)
    assert root.entries["a"].place == Place(1, 1)
    assert root.entries["a"].value.place == Place(1, 4)
    items = root.entries["b"].value
    assert isinstance(items, YamlList)
    assert [item.place for item in items.items] == [Place(3, 5), Place(4, 5)]
    inner = items.items[1]
    assert isinstance(inner, YamlMap)
    assert inner.entries["c"].value.place == Place(4, 9)


def test_columns_count_characters_not_bytes() -> None:
    root = read_yaml("{ä: 1, b: 2}").root
    assert isinstance(root, YamlMap)
    assert root.entries["b"].place == Place(1, 8)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("+7", 7),
        ("1_000", 1000),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e6", 1e6),
        ("-2.5E-3", -0.0025),
        (".5", 0.5),
        ("true", True),
        ("Off", False),
        ("yes", True),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("smollm2:135m", "smollm2:135m"),
        ("1e", "1e"),
        ("-", None),
    ],
)
def test_scalars_are_read_as_people_expect_them(text: str, value: object) -> None:
    if text == "-":
        assert read("a: [x, '-']") == {"a": ["x", "-"]}
        return
    found = read(f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_infinity_and_not_a_number_are_numbers() -> None:
    assert read("a: .inf") == {"a": float("inf")}
    assert read("a: -.Inf") == {"a": float("-inf")}
    assert read("a: .nan")["a"] != read("a: .nan")["a"]


def test_keys_are_text_as_written_whatever_they_look_like() -> None:
    assert read("no: 1\n7: 2\n1.50: 3\n") == {"no": 1, "7": 2, "1.50": 3}


def test_a_key_that_is_written_twice_is_refused_with_both_lines() -> None:
    where, message, line, column = only_problem("m:\n  a: 1\n  b: 2\n  a: 3\n")
    assert (where, line, column) == ("m.a", 4, 3)
    assert "`a` is written twice" in message
    assert "line 2" in message


def test_all_duplicate_keys_are_reported_at_once() -> None:
    problems = read_yaml("a: 1\na: 2\nb: {c: 1, c: 2}\n").problems
    assert [problem.where for problem in problems] == ["a", "b.c"]


def test_an_anchor_is_read_wherever_it_is_referenced() -> None:
    assert read("a: &x {b: 1}\nc: *x\n") == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_key_may_be_an_anchor_and_a_reference() -> None:
    assert read("&x a: 1\nb: {*x : 2}\n") == {"a": 1, "b": {"a": 2}}


def test_an_anchor_that_is_written_twice_is_refused_at_the_second() -> None:
    where, message, line, column = only_problem("a: &x 1\nb: &x 2\n")
    assert (where, line, column) == ("", 2, 4)
    assert "written twice" in message


def test_merge_keys_fill_in_what_the_map_does_not_say() -> None:
    assert read("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n")["d"] == {"b": 1, "c": 3}


def test_the_first_of_several_merged_maps_wins() -> None:
    assert read("a: &x {b: 1}\nc: &y {b: 2, d: 3}\ne:\n  <<: [*x, *y]\n")["e"] == {"b": 1, "d": 3}


def test_merging_something_that_is_no_map_is_refused() -> None:
    where, message, line, _ = only_problem("a:\n  <<: 3\n")
    assert (where, line) == ("a.<<", 2)
    assert "merges a map" in message


def test_a_reference_to_its_own_container_is_refused() -> None:
    assert "contains it" in only_problem("a: &x [*x]")[1]


def test_an_anchor_bomb_is_refused_without_being_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    message = only_problem("\n".join(lines))[1]
    assert "references" in message
    assert "1000000 are allowed" in message


def test_merging_without_end_is_refused() -> None:
    big = "a: &a {" + ", ".join(f"k{i}: 1" for i in range(2000)) + "}\n"
    problems = read_yaml(big + "b:\n  <<: [" + ", ".join(["*a"] * 600) + "]\n").problems
    assert "1000000 are allowed" in problems[0].message


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_a_document_that_is_nested_too_deeply_is_refused(opening: str) -> None:
    closing = {"[": "]", "{a: ": "}", "- ": ""}[opening]
    for depth in (MAX_DEPTH + 5, 200_000):
        problems = read_yaml(opening * depth + "x" + closing * depth).problems
        assert any("levels deep" in problem.message for problem in problems)


def test_a_document_of_the_allowed_depth_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert read_yaml("[" * depth + "x" + "]" * depth).problems == ()


@pytest.mark.parametrize("tag", ["!!python/object:os.system", "!!python/name:os.system", "!foo", "!!binary", "!!set"])
def test_tags_are_refused_and_nothing_is_constructed(tag: str) -> None:
    where, message, _, _ = only_problem(f"a: {tag} x" if "set" not in tag else f"a: {tag} {{x: null}}")
    assert where == "a"
    assert "tag" in message
    assert "is not supported" in message


def test_an_explicit_type_that_does_not_fit_is_refused() -> None:
    assert "cannot be read as the type" in only_problem("a: !!int x")[1]


def test_an_integer_of_absurd_length_is_refused() -> None:
    assert "cannot be read" in only_problem(f"a: {'9' * 10_000}")[1]


def test_a_key_that_is_no_text_is_refused() -> None:
    assert "a key must be" in only_problem("? [1, 2]\n: 3\n")[1]
    assert "a key must be" in only_problem("'': 3\n")[1]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("models: [", 1, 10, "the text ends in the middle"),
        ("a: 1\nb: {c: 1,\n", 2, 10, "the text ends in the middle"),
        ("a:\n\tb: 1\n", 2, 1, "a tab is used as indentation"),
        ("a: b: c", 1, 5, "put quotes around text"),
        ("a: 'x", 1, 6, "the quote that was opened"),
        ("a: @x", 1, 4, "cannot start with `@`"),
        ("a: `x`", 1, 4, "cannot start with ```"),
        ("a: *b", 1, 4, "does not exist"),
        ("a: 1\n---\nb: 2\n", 2, 1, "a second document"),
        ("a:\n  b: 1\n   c: 2\n", 3, 5, "`:` and the indentation"),
        ("a:\n    b: 1\n  c: 2\n", 3, 3, "look at its indentation"),
        ("a: 1\nb: \x07\n", 2, 4, "U+0007"),
        ("a: \ud800", 1, 4, "U+D800"),
    ],
)
def test_a_syntax_error_has_its_place_and_words_for_people(text: str, line: int, column: int, words: str) -> None:
    where, message, found_line, found_column = only_problem(text)
    assert where == ""
    assert words in message
    assert (found_line, found_column) == (line, column)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_document_has_no_problems_and_no_content(text: str) -> None:
    document = read_yaml(text)
    assert document.problems == ()
    assert plain(document.root) is None


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    assert read("\ufeffa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}


@settings(deadline=None)  # other work may share the machine
@given(st.text(alphabet=st.sampled_from("ab:-[]{},&*!|>'\"%@#?~<1. \n\t"), max_size=60))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    document = read_yaml(text)
    lines = text.splitlines() or [""]
    for problem in document.problems:
        assert 1 <= problem.place.line <= len(lines) + 1
        assert problem.place.column >= 1
        assert problem.message


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n", "\x85", "\u2028"])
def test_a_character_that_is_not_allowed_has_its_place_whatever_lines_end_with(line_end: str) -> None:
    (problem,) = read_yaml(f"a: 1{line_end}b: \x01").problems
    assert problem.place == Place(2, 4)
