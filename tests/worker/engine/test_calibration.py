"""What is measured, what follows from it, and that only one's own records are believed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.contract import EngineOptions
from worker.engine.calibration import (
    BUDGET_S,
    MAX_PASS_S,
    Calibration,
    Measurements,
    Subject,
    choose_flash_attn,
    fill_rows,
    from_json,
    passes,
    settings,
)
from worker.engine.calibration_files import read_calibration, subject_of, write_calibration

OPTIONS = EngineOptions(context=1024)
SUBJECT = Subject("m.gguf", 1000, 5, "0.3 CPU : AVX2", "A CPU", 2, 512, "f16", "f16", swa_full=True)
FOUND = Calibration(SUBJECT, {"off": {1: 0.014, 4: 0.04, 128: 0.59}, "on": {4: 0.05, 32: 0.2, 128: 1.0}})


# --- what is measured -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("on", "off")),
        ({"flash_attn": "off"}, ("off",)),
        ({"flash_attn": "on"}, ("on",)),
        ({"cache_type_v": "q8_0"}, ("on",)),
        ({"cache_type_k": "q8_0"}, ("on", "off")),
    ],
)
def test_both_settings_are_measured_only_where_there_is_a_choice(
    options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert settings(replace(OPTIONS, **options)) == expected


def test_settings_take_turns_and_the_other_one_is_measured_as_far_as_the_choice_needs() -> None:
    both = {rows: [("on", rows), ("off", rows)] for rows in (8, 4, 1, 32, 128)}
    on = {rows: [("on", rows)] for rows in (64, 256)}
    streams = both[8] * 3 + both[4] * 6 + both[1] * 3
    assert passes(OPTIONS, 512) == streams + both[32] * 2 + both[128] * 2 + on[64] + on[256]
    one = passes(replace(OPTIONS, flash_attn="off"), 64)
    assert one == [("off", rows) for rows in (8, 8, 8, *[4] * 6, 1, 1, 1, 32, 32, 64)]


def test_cells_are_filled_with_what_can_be_computed_in_a_short_time() -> None:
    assert fill_rows(512, (8, 0.04)) == 128
    assert fill_rows(32, (8, 0.04)) == 32
    assert fill_rows(512, (8, 0.4)) == 16
    assert fill_rows(512, (8, MAX_PASS_S)) is None, "such a model is not measured at all"


def measured(*, spent_s: float = 0.0, **off: tuple[float, ...]) -> Measurements:
    found = Measurements()
    for rows, taken in off.items():
        for seconds in taken:
            found.note("off", int(rows.removeprefix("rows_")), seconds)
    if spent_s:
        found.spent_s = spent_s
    return found


def test_passes_that_would_take_long_are_not_measured() -> None:
    some = {"rows_8": (0.1,), "rows_32": (0.4, 0.3)}
    assert measured().is_affordable("off", 8)
    assert measured(**some).is_affordable("off", 64)
    assert measured(**some).is_affordable("on", 64), "nothing is known of the other setting"
    assert not measured(**some).is_affordable("off", 256), f"2.4 s at most, the limit is {MAX_PASS_S} s"
    assert not measured(**some, spent_s=BUDGET_S - 0.5).is_affordable("off", 64)
    assert measured(**some, spent_s=BUDGET_S - 0.5).is_affordable("off", 32)
    assert not measured(**some, spent_s=BUDGET_S + 0.1).is_affordable("off", 1)


def test_shortest_time_counts_and_all_times_are_spent() -> None:
    found = measured(rows_8=(0.3, 0.1, 0.2))
    assert found.times() == {"off": {8: 0.1}}
    assert found.spent_s == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [((0.1, 0.11, 0.5), True), ((0.5, 0.1, 0.11), True), ((0.1, 0.2, 0.3), False), ((0.1, 0.2), False), ((0.1,), True)],
)
def test_times_that_no_other_pass_confirms_were_disturbed(taken: tuple[float, ...], expected: bool) -> None:
    assert measured(rows_1=(0.01,), rows_8=taken).is_undisturbed == expected


@pytest.mark.parametrize(("share", "expected"), [(1.0, True), (0.9, True), (0.6, False)])
def test_passes_that_had_to_share_the_processor_were_disturbed(share: float, expected: bool) -> None:
    found = measured(rows_1=(0.01, 0.01))
    found.cpu_share = share
    assert found.is_undisturbed == expected


# --- what follows -----------------------------------------------------------------------------------------


def times(answer_s: float, piece_s: float, prompt_s: float) -> dict[int, float]:
    return {4: answer_s, 32: piece_s, 128: prompt_s}


@pytest.mark.parametrize(
    ("off", "on", "chosen"),
    [
        (times(0.04, 0.15, 0.6), times(0.08, 0.15, 0.6), "off"),
        (times(0.04, 0.15, 0.6), times(0.04, 0.05, 0.3), "on"),
        (times(0.04, 0.15, 0.6), times(0.041, 0.152, 0.62), "on"),  # not clearly
        (times(0.04, 0.15, 0.6), times(0.04, 0.40, 0.2), "off"),  # a cliff for small pieces
        (times(0.031, 0.155, 0.614), times(0.022, 0.18, 0.5), "on"),  # as measured of a small model on two cores
    ],
)
def test_flash_attention_is_used_unless_the_usual_work_is_clearly_faster_without_it(
    off: dict[int, float], on: dict[int, float], chosen: str
) -> None:
    assert choose_flash_attn(OPTIONS, Calibration(SUBJECT, {"off": off, "on": on})) == chosen


def test_nothing_changes_without_both_figures_or_without_a_choice() -> None:
    slow = times(0.04, 0.15, 0.6)
    fast = Calibration(SUBJECT, {"off": slow, "on": times(0.01, 0.02, 0.1)})
    assert choose_flash_attn(replace(OPTIONS, flash_attn="off"), fast) == "off"
    assert choose_flash_attn(OPTIONS, Calibration(SUBJECT, {"off": slow, "on": {4: 0.01, 128: 0.1}})) == "auto"
    assert choose_flash_attn(OPTIONS, Calibration(SUBJECT, {"on": slow})) == "auto"


# --- how it is kept ---------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was() -> None:
    assert from_json(FOUND.to_json(), SUBJECT) == FOUND


@pytest.mark.parametrize(
    "change",
    [
        {"model_file": "n.gguf"},
        {"model_bytes": 1001},
        {"modified_ns": 6},
        {"library": "0.4"},
        {"cpu": "Another CPU"},
        {"num_threads": 1},
        {"max_rows": 256},
        {"cache_type_k": "q8_0"},
        {"cache_type_v": "q8_0"},
        {"swa_full": False},
    ],
)
def test_a_record_of_anything_else_is_not_believed(change: dict[str, Any], tmp_path: Path) -> None:
    other = replace(SUBJECT, **change)
    assert from_json(FOUND.to_json(), other) is None
    write_calibration(tmp_path, FOUND)
    assert read_calibration(tmp_path, other) is None
    (kept,) = tmp_path.iterdir()
    write_calibration(tmp_path, Calibration(other, FOUND.times))
    (foreign,) = set(tmp_path.iterdir()) - {kept}
    foreign.replace(kept)
    assert read_calibration(tmp_path, SUBJECT) is None, "even under this one's name"


def broken(**changes: Any) -> str:
    return json.dumps(json.loads(FOUND.to_json()) | changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00\xff",
        FOUND.to_json()[:80],
        broken(format=2),
        broken(times={}),
        broken(times={"off": {}}),
        broken(times={"off": {"x": 1}}),
        broken(times={"off": {"4": "fast"}}),
        broken(times={"off": {"4": 0}}),
        broken(times={"off": {"4": -0.1}}),
        broken(times={"off": {"4": math.nan}}),
        broken(times={"off": {"0": 0.1}}),
        broken(times=[]),
    ],
)
def test_a_broken_record_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    assert from_json(text, SUBJECT) is None
    write_calibration(tmp_path, FOUND)
    (path,) = tmp_path.iterdir()
    path.write_text(text, encoding="utf-8")
    assert read_calibration(tmp_path, SUBJECT) is None
    write_calibration(tmp_path, FOUND)
    assert read_calibration(tmp_path, SUBJECT) == FOUND


def test_a_folder_that_cannot_be_written_to_is_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    write_calibration(tmp_path / "file" / "calibration", FOUND)
    assert read_calibration(tmp_path / "file" / "calibration", SUBJECT) is None
    assert "cannot be kept" in caplog.text


def test_subject_tells_files_options_and_machines_apart(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    found = subject_of(str(path), replace(OPTIONS, ubatch_size=64), library="1", cpu="c", num_threads=3)
    assert (found.model_file, found.model_bytes, found.max_rows, found.num_threads) == ("m.gguf", 4, 64, 3)
    path.write_bytes(b"GGUF2")
    assert subject_of(str(path), OPTIONS, library="1", cpu="c", num_threads=3) != found
    with pytest.raises(OSError, match="none"):
        subject_of(str(tmp_path / "none.gguf"), OPTIONS, library="1", cpu="c", num_threads=3)
