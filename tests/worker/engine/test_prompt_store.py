"""The engine on a fake backend goes on from prompts of an earlier life, and never from anybody else's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import Bench, cached, ended, prompt_of
from worker.engine.prompt_files import PromptFolder
from worker.engine.prompt_store import MIN_STORED

FOREVER_S = float("inf")
LONG = prompt_of(100)


def bench_on(
    folder: Path, *, subject: str = "model", max_bytes: int = 10**9, can_share: bool = True, host_tokens: int = 0
) -> Bench:
    backend = FakeBackend(num_slots=2, num_vocab=100_000, context=256, can_share=can_share)
    backend.bytes_per_token = 8
    prompts = PromptFolder.open(folder, "m", subject, max_bytes)
    return Bench(backend, prompts=prompts, host_tokens=host_tokens, max_idle_cells=0)


def saved(folder: Path, *prompts: list[int], **fields: object) -> None:
    bench = bench_on(folder, host_tokens=1000)
    for prompt in prompts:
        ended(bench, prompt, **fields)
    bench.core.save_prompts(FOREVER_S)


def files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.kv"))


def test_the_next_life_computes_only_what_is_new(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    bench = bench_on(tmp_path)
    prompt = [*LONG, 7, 8, 9]
    request_id = ended(bench, prompt)
    assert cached(bench, request_id) == len(LONG)
    assert sum(bench.backend.passes[0]) == 3
    assert bench.answers[request_id] == bench.expected(prompt, 4)


def test_prompts_in_cells_and_in_host_memory_are_both_kept(tmp_path: Path) -> None:
    other = prompt_of(90, start=5)
    saved(tmp_path, LONG, other)
    for prompt in (LONG, other):
        bench = bench_on(tmp_path)
        assert cached(bench, ended(bench, [*prompt, 1])) == len(prompt)


def test_a_prompt_serves_several_requests_and_leaves_no_bytes_in_host_memory(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    bench = bench_on(tmp_path)
    ids = [bench.submit([*LONG, 50 + i], 3) for i in range(4)]
    bench.run()
    assert [cached(bench, one) for one in ids] == [len(LONG)] * 4
    assert bench.backend.blobs == {}
    for i, one in enumerate(ids):
        assert bench.answers[one] == bench.expected([*LONG, 50 + i], 3)


@pytest.mark.parametrize(
    ("fields", "later"),
    [
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"cache_salt": "a"}, {}),
        ({}, {"cache_salt": "a"}),
        ({"adapters": ((0, 1.0),)}, {}),
        ({}, {"adapters": ((0, 1.0),)}),
        ({"adapters": ((0, 1.0),)}, {"adapters": ((0, 0.5),)}),
    ],
)
def test_another_salt_or_other_adapters_share_nothing(
    tmp_path: Path, fields: dict[str, object], later: dict[str, object]
) -> None:
    saved(tmp_path, LONG, **fields)
    bench = bench_on(tmp_path)
    request_id = ended(bench, [*LONG, 1], **later)
    assert cached(bench, request_id) == 0
    assert bench.answers[request_id] == bench.expected([*LONG, 1], 4, later.get("adapters", ()))  # type: ignore[arg-type]
    same = bench_on(tmp_path)
    request_id = ended(same, [*LONG, 1], **fields)
    assert cached(same, request_id) == len(LONG)
    assert same.answers[request_id] == same.expected([*LONG, 1], 4, fields.get("adapters", ()))  # type: ignore[arg-type]


def test_what_was_not_to_be_cached_is_not_written(tmp_path: Path) -> None:
    saved(tmp_path, LONG, cache_prompt=False)
    assert files(tmp_path) == []


def test_a_prompt_too_short_to_be_worth_it_is_not_written(tmp_path: Path) -> None:
    saved(tmp_path, prompt_of(MIN_STORED - 10))
    assert files(tmp_path) == []


def test_another_model_starts_from_nothing(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    bench = bench_on(tmp_path, subject="another")
    request_id = ended(bench, [*LONG, 1])
    assert cached(bench, request_id) == 0
    assert files(tmp_path) == []


def test_a_memory_that_cannot_be_cut_keeps_nothing_on_the_disk(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    bench = bench_on(tmp_path, can_share=False)
    request_id = ended(bench, [*LONG, 1])
    assert bench.answers[request_id] == bench.expected([*LONG, 1], 4)


def test_damaged_bytes_cost_only_time(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    bench = bench_on(tmp_path)
    assert len(bench.core.scheduler.kv.cache.worth_keeping().__next__().tokens) >= len(LONG), "it looks sound"
    ids = [bench.submit([*LONG, 1 + i], 4) for i in range(2)]
    bench.run()
    for i, request_id in enumerate(ids):
        assert bench.answers[request_id] == bench.expected([*LONG, 1 + i], 4)
    assert cached(bench, ids[0]) == 0, "it was computed, and is not called cached"
    assert not path.exists()


def test_a_prompt_that_llama_cpp_does_not_take_is_not_offered_again(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    bench = bench_on(tmp_path)
    bench.backend.fails_to_restore = True
    request_id = ended(bench, [*LONG, 1])
    assert bench.answers[request_id] == bench.expected([*LONG, 1], 4)
    assert cached(bench, request_id) == 0
    assert files(tmp_path) == []
    assert bench.backend.blobs == {}


def test_a_prompt_after_which_numbers_are_not_finite_is_not_read_again(tmp_path: Path) -> None:
    saved(tmp_path, LONG, prompt_of(90, start=5))
    bench = bench_on(tmp_path)
    bench.backend.foul_token = 77_777
    ended(bench, [*LONG, 77_777])
    assert len(files(tmp_path)) == 1, "the one that was not used stays"


def test_a_conversation_that_went_on_has_one_file(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    bench = bench_on(tmp_path)
    history = [*LONG, *bench.expected(LONG, 4)]
    ended(bench, [*history, 1, 2, 3])
    bench.core.save_prompts(FOREVER_S)
    assert len(files(tmp_path)) == 1
    third = bench_on(tmp_path)
    assert cached(third, ended(third, [*history, 1, 2, 3])) == len(history) + 2


def test_a_prompt_that_was_not_used_stays_without_being_written_again(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    (path,) = files(tmp_path)
    inode = path.stat().st_ino
    bench = bench_on(tmp_path)
    ended(bench, prompt_of(90, start=5))
    bench.core.save_prompts(FOREVER_S)
    assert path.stat().st_ino == inode
    assert len(files(tmp_path)) == 2


def test_the_limit_leaves_the_prompt_that_was_used_last(tmp_path: Path) -> None:
    saved(tmp_path, LONG)
    (path,) = files(tmp_path)
    limit = path.stat().st_size + 50
    bench = bench_on(tmp_path, max_bytes=limit)
    ended(bench, prompt_of(95, start=5))
    bench.core.save_prompts(FOREVER_S)
    assert len(files(tmp_path)) == 1
    again = bench_on(tmp_path, max_bytes=limit)
    assert cached(again, ended(again, [*LONG, 1])) == 0
    assert cached(again, ended(again, [*prompt_of(95, start=5), 1])) == 95


def test_without_time_nothing_is_written(tmp_path: Path) -> None:
    bench = bench_on(tmp_path)
    ended(bench, LONG)
    bench.core.save_prompts(bench.now_s - 1)
    assert files(tmp_path) == []


def test_saving_while_something_runs_keeps_the_books_right(tmp_path: Path) -> None:
    bench = bench_on(tmp_path, host_tokens=1000)
    ended(bench, LONG)
    running = bench.submit(prompt_of(50, start=9), 10)
    bench.step()
    bench.core.abort(bench.submit([*LONG, 4], 10))
    bench.core.save_prompts(FOREVER_S)
    bench.core.check_cells()
    holders = bench.core.scheduler.kv.cache
    assert set(bench.backend.blobs) == {one.blob_id for one in holders if not one.is_resident}, "copies are gone"
    bench.run()
    assert bench.answers[running] == bench.expected(prompt_of(50, start=9), 10)
    assert len(files(tmp_path)) == 1


def test_a_disk_that_cannot_be_written_to_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = bench_on(tmp_path / "prompts")
    ended(bench, LONG)
    (tmp_path / "prompts").write_text("a file")
    bench.core.save_prompts(FOREVER_S)
    assert "cannot be kept" in caplog.text


def test_what_is_logged_tells_numbers_and_no_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    saved(tmp_path, LONG)
    bench_on(tmp_path)
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in told] == ["prompts kept on the disk", "prompts on the disk"]
    assert all(": 1, 103 tokens" in line and "MB" in line and " s" in line for line in told)


def test_two_workers_of_one_model_keep_their_prompts_side_by_side(tmp_path: Path) -> None:
    one, two = bench_on(tmp_path), bench_on(tmp_path)
    ended(one, LONG)
    ended(two, prompt_of(90, start=5))
    one.core.save_prompts(FOREVER_S)
    two.core.save_prompts(FOREVER_S)
    third = bench_on(tmp_path)
    assert cached(third, ended(third, [*LONG, 1])) == len(LONG)
    assert cached(third, ended(third, [*prompt_of(90, start=5), 1])) == 90


def test_a_restart_keeps_the_order_of_use(tmp_path: Path) -> None:
    saved(tmp_path, LONG, prompt_of(90, start=5))
    kept = PromptFolder.open(tmp_path, "m", "model", 10**9).files
    assert [len(file.tokens) for file in kept] == [93, 103]
    assert all(file.used_at <= time.time() + 1 for file in kept)
