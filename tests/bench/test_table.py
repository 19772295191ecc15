"""The table says what was reached, against whom, and what was not measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.figures import BEST, ITSELF, PLAIN, Entry, Figure, Kind, Target
from bench.plots import advantage, draw
from bench.raw import Raw, Screening, read_raw, read_screening, write_screening
from bench.report import document, main
from bench.row import Row
from bench.rows import ROWS, chosen_rows
from bench.scenarios import FIRST, GAP, SPEED
from bench.table import Line, lines, markdown, number, summary
from bench.tunings import COPY, LONG, STEADY, tuned

SCENARIO = ROWS[0].scenario
CHOSEN = {STEADY: "-fa off", LONG: "-b 64", COPY: "-fa off --spec-type ngram-simple"}


def row(*targets: Target, joint: bool = False, family: str | None = STEADY) -> Row:
    return Row("key", "a row", SCENARIO, 1, 1.0, family=family, targets=targets, is_joint=joint, extras=(PLAIN,))


def entries(name: str, *values: float, figure: str = SPEED, unit: str = "tok/s", more: bool = True) -> list[Entry]:
    return [Entry("key", name, turn, Figure(figure, value, unit, more)) for turn, value in enumerate(values)]


def only_line(found: list[Line]) -> Line:
    assert len(found) == 1
    return found[0]


def test_ours_is_compared_with_the_better_llama_server_by_medians() -> None:
    measured = entries("ours", 90, 110, 100) + entries("default", 60, 80, 70) + entries("tuned", 99, 101, 500)
    line = only_line(lines(row(Target(SPEED, 0.97, aim=1.1)), measured, CHOSEN))
    assert line.best == "tuned"
    assert line.ratio == pytest.approx(100 / 101)
    assert line.cells() == (
        "a row",
        "smollm2",
        SPEED,
        "100 tok/s (90–110)",
        "70 tok/s (60–80)",
        "101 tok/s (99–500) `-fa off`",
        "0.99",
        "≥ 0.97x, aim ≥ 1.1",
        "yes",
        "",
    )


def test_less_is_better_where_the_figure_says_so() -> None:
    measured = entries("ours", 4.0, more=False) + entries("default", 9, more=False) + entries("tuned", 10, more=False)
    line = only_line(lines(row(Target(SPEED, 0.4)), measured, CHOSEN))
    assert line.best == "default"
    assert line.cells()[7:9] == ("≤ 0.4x", "**no**")
    assert advantage(line) == pytest.approx(9 / 4)


def test_both_figures_of_a_joint_row_are_compared_with_one_llama_server() -> None:
    measured = [
        *entries("ours", 0.2, figure=GAP, unit="s", more=False),
        *entries("ours", 12, figure=FIRST, unit="s", more=False),
        *entries("default", 8.5, figure=GAP, unit="s", more=False),
        *entries("default", 11, figure=FIRST, unit="s", more=False),
        *entries("tuned", 0.45, figure=GAP, unit="s", more=False),
        *entries("tuned", 14, figure=FIRST, unit="s", more=False),
    ]
    targets = (Target(GAP, 0.5, aim=0.25), Target(FIRST, 1.0))
    gap, first = lines(row(*targets, joint=True, family=LONG), measured, CHOSEN)
    assert gap.best == first.best == "tuned"
    assert (gap.cells()[8], first.cells()[8]) == ("yes", "yes")
    _, apart = lines(row(*targets, family=LONG), measured, CHOSEN)
    assert apart.best == "default"
    assert apart.cells()[8] == "**no**"


def test_targets_against_others_and_against_a_number() -> None:
    measured = entries("ours", 100.0) + entries(PLAIN.name, 50.0)
    targets = Target(SPEED, None, PLAIN.name, aim=1.5), Target(SPEED, 120, ITSELF)
    line = only_line(lines(row(*targets, family=None), measured, {}))
    assert line.ratio is None
    assert line.cells()[7:] == (
        "aim ≥ 1.5x ours, no speculation; ≥ 120 tok/s",
        "aim reached; **no**",
        "ours, no speculation 50 tok/s",
    )


def test_a_bound_of_what_was_not_measured_is_neither_met_nor_missed() -> None:
    target = Target(SPEED, 0.97)
    alone = lines(row(target), entries("ours", 100.0), CHOSEN)
    assert only_line(alone).cells()[8] == "not measured"
    failed = lines(row(target), entries("default", 100.0), CHOSEN)
    assert only_line(failed).cells()[3] == "failed"
    nothing = lines(row(target), [], CHOSEN)
    assert only_line(nothing).cells()[8] == "not measured"
    assert summary([*alone, *failed, *nothing]) == "0 of 3 bounds hold, 0 do not, 3 were not measured."


def test_two_zeros_tell_nothing_and_any_figure_loses_to_zero() -> None:
    target = Target(SPEED, 0.2)
    zero = entries("default", 0.0, more=False)
    assert only_line(lines(row(target), entries("ours", 0.0, more=False) + zero, CHOSEN)).cells()[8] == "not measured"
    assert only_line(lines(row(target), entries("ours", 0.1, more=False) + zero, CHOSEN)).cells()[8] == "**no**"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (1.0, "1"), (2.345, "2.35"), (99.94, "99.9"), (2500.4, "2500")]
)
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_table_leaves_out_columns_that_nobody_fills() -> None:
    text = markdown(lines(row(family=None), entries("ours", 1.0), {}))
    assert text.splitlines()[0] == "| scenario | model | figure | ours |"


# --- rows -------------------------------------------------------------------------------------------------


def test_rows_are_told_apart_by_their_keys_and_found_by_words() -> None:
    assert len({one.key for one in ROWS}) == len(ROWS)
    assert chosen_rows("") == list(ROWS)
    assert {one.key for one in chosen_rows("memory, cancel")} == {"prefix", "cancel"}
    assert chosen_rows("nonsense") == []


def test_every_target_is_against_somebody_who_takes_part() -> None:
    chosen = {one.family: "-x" for one in ROWS if one.family is not None}
    for one in ROWS:
        names = {contestant.name for contestant in one.contestants(chosen)}
        assert {target.against for target in one.targets} <= names | {BEST, ITSELF}
        has_peer = any(contestant.kind is Kind.PEER for contestant in one.contestants(chosen))
        assert has_peer or all(target.against != BEST for target in one.targets)


def test_the_chosen_tuning_takes_part_only_where_it_was_screened() -> None:
    assert tuned("-fa off") in ROWS[0].contestants(CHOSEN)
    assert tuned("-fa off") not in ROWS[0].contestants({})


# --- raw files and reports --------------------------------------------------------------------------------


def raw() -> Raw:
    key = ROWS[0].key
    measured = entries("ours", 100, 102) + entries("default", 80, 81) + entries("tuned", 99, 98)
    screening = Screening("version: 1", {STEADY: {"default": {SPEED: 80.0}, "-fa off": {SPEED: 99.0}}}, CHOSEN)
    return Raw(
        "2026-01-02 03:04:05",
        {"processor": "one"},
        "version: 1",
        {"threads": 2},
        dataclasses.replace(screening, chosen={STEADY: "-fa off"}),
        [dataclasses.replace(entry, row=key) for entry in measured],
        ["a note"],
    )


def test_a_raw_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "raw.json"
    raw().write(file)
    assert read_raw(file) == raw()
    assert read_screening(file) == raw().screening, "a whole run is as good as a file of its screening"
    screening = raw().screening
    assert screening is not None
    write_screening(screening, tmp_path / "screening.json")
    assert read_screening(tmp_path / "screening.json") == screening


def test_a_report_has_the_machine_the_table_the_screening_and_the_notes() -> None:
    text = document(raw(), [])
    assert "- processor: one" in text
    assert "| 101 tok/s (100–102) | 80.5 tok/s (80–81) | 98.5 tok/s (98–99) `-fa off` | 1.03 |" in text
    assert "Best for steady generation: `-fa off`" in text
    assert "- a note" in text


def test_a_report_is_printed_and_a_wrong_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw().write(tmp_path / "raw.json")
    assert main([str(tmp_path / "raw.json")]) == 0
    assert "1 of 1 bounds hold" in capsys.readouterr().out
    (tmp_path / "other.json").write_text("{}")
    assert main([str(tmp_path / "other.json")]) == 1
    assert "not a raw file" in capsys.readouterr().out
    assert main([]) == 2


def test_plots_are_written(tmp_path: Path) -> None:
    plots = draw(raw().table(), tmp_path / "run")
    assert plots is not None
    assert [plot.name for plot in plots] == ["run-ratios.svg", "run-steady.svg"]
    assert all("<svg" in plot.read_text(encoding="utf-8") for plot in plots)
