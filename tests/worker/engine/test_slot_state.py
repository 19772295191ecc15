"""A slot's prompt leaves the cache and comes back as it was, for the client that had it computed and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import Bench, cached, ended, prompt_of
from worker.engine.occupants import Client
from worker.engine.prompt_files import PromptFolder
from worker.engine.request import RequestId
from worker.engine.slot_state import NoRoomInCache, NotTaken, SlotBusy, SlotCopy, SlotEmpty, SlotStates

LONG = prompt_of(100)
NOBODY = Client()


def bench_of(num_cells: int = 512, *, host_tokens: int = 0, prompts: PromptFolder | None = None) -> Bench:
    backend = FakeBackend(num_slots=2, num_vocab=100_000, context=256, num_cells=num_cells)
    backend.bytes_per_token = 8
    return Bench(backend, prompts=prompts, host_tokens=host_tokens)


def states_of(bench: Bench, prompts: PromptFolder | None = None) -> SlotStates:
    return SlotStates(bench.core, lambda: bench.now_s, prompts)


def slot_of(bench: Bench, request_id: RequestId) -> int:
    slot = bench.ends[request_id].slot
    assert slot is not None
    return slot


def copied(prompt: list[int], client: Client = NOBODY, **fields: object) -> SlotCopy:
    """Return the state of a slot in which the client has had the prompt computed, in another life."""
    bench = bench_of()
    request_id = ended(bench, prompt, owner=client.owner, cache_salt=client.salt, **fields)
    copy = states_of(bench).copy(slot_of(bench, request_id), client)
    bench.core.check_cells()
    return copy


def test_a_state_that_comes_back_spares_the_prompt_and_changes_no_token() -> None:
    copy = copied(LONG)
    assert copy.tokens.tolist() == [*LONG, *bench_of().expected(LONG, 4)][:103]
    bench = bench_of()
    states_of(bench).insert(1, NOBODY, copy)
    bench.core.check_cells()
    prompt = [*copy.tokens.tolist(), 7, 8, 9]
    request_id = ended(bench, prompt)
    assert cached(bench, request_id) == len(copy.tokens)
    assert sum(bench.backend.passes[0]) == 3
    assert bench.answers[request_id] == bench.expected(prompt, 4)
    assert bench.backend.blobs == {}


def test_an_answer_is_the_same_with_another_models_turn_between_and_without_one() -> None:
    turns = ([1, 2, 3], [9, 9], [4])
    straight, history = bench_of(), list(LONG)
    whole = []
    for turn in turns:
        history += turn
        whole.append(straight.answers[ended(straight, list(history))])
        history += whole[-1]
    history, parts = list(LONG), []
    copy: SlotCopy | None = None
    for turn in turns:  # each in a life of its own
        bench = bench_of()
        if copy is not None:
            states_of(bench).insert(0, NOBODY, copy)
        history += turn
        request_id = ended(bench, list(history), slot=0)
        assert copy is None or cached(bench, request_id) == len(copy.tokens)
        parts.append(bench.answers[request_id])
        history += parts[-1]
        copy = states_of(bench).copy(0, NOBODY)
    assert parts == whole


def test_only_who_had_it_computed_can_copy_it() -> None:
    bench, mine = bench_of(), Client("key a", "salt")
    slot = slot_of(bench, ended(bench, LONG, owner=mine.owner, cache_salt=mine.salt))
    states = states_of(bench)
    for other in (NOBODY, Client("key a"), Client("key b", "salt"), Client("", "salt")):
        with pytest.raises(SlotEmpty):
            states.copy(slot, other)
        assert states.erase(slot, other) == 0
    assert len(states.copy(slot, mine).tokens) == 103
    bench.core.check_cells()


def test_a_slot_that_others_have_used_since_still_means_ones_own_prompt() -> None:
    bench, mine = bench_of(), Client("key a")
    ended(bench, LONG, owner="key a", slot=0)
    ended(bench, [*LONG, 5, 6], owner="key b", slot=0)
    copy = states_of(bench).copy(0, mine)
    assert copy.tokens.tolist() == [*LONG, *bench.expected(LONG, 4)][:103]
    assert len(bench.backend.tokens_of(0)) == 0
    other = bench_of()
    states_of(other).insert(0, mine, copy)
    request_id = ended(other, [*LONG, 5, 6, 7])
    assert cached(other, request_id) == len(LONG), "not one token more than its own"
    assert other.answers[request_id] == other.expected([*LONG, 5, 6, 7], 4)


@pytest.mark.parametrize(
    ("fields", "later"),
    [
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"cache_salt": "a"}, {}),
        ({}, {"cache_salt": "a"}),
        ({"adapters": ((0, 1.0),)}, {}),
        ({}, {"adapters": ((0, 1.0),)}),
    ],
)
def test_what_came_back_is_read_by_the_same_salt_and_adapters_alone(
    fields: dict[str, object], later: dict[str, object]
) -> None:
    client = Client(salt=str(fields.get("cache_salt", "")))
    bench_fields = {name: value for name, value in fields.items() if name != "cache_salt"}
    copy = copied(LONG, client, **bench_fields)
    bench = bench_of()
    states_of(bench).insert(0, client, copy)
    stranger = ended(bench, [*LONG, 1], **later)
    assert cached(bench, stranger) == 0
    assert bench.answers[stranger] == bench.expected([*LONG, 1], 4, later.get("adapters", ()))  # type: ignore[arg-type]
    assert cached(bench, ended(bench, [*LONG, 1], **fields)) == len(LONG)


def test_a_slot_that_answers_its_client_is_busy_and_one_that_answers_another_is_not() -> None:
    bench = bench_of()
    ended(bench, LONG, slot=0, owner="key a")
    bench.submit([*LONG, 1], 50, slot=0, owner="key a")
    bench.step()
    states = states_of(bench)
    for act in (states.copy, states.erase):
        with pytest.raises(SlotBusy):
            act(0, Client("key a"))
    with pytest.raises(SlotBusy):
        states.insert(0, Client("key a"), copied(LONG))
    with pytest.raises(SlotEmpty):
        states.copy(0, Client("key b"))
    bench.run()
    bench.core.check_cells()


def test_an_empty_slot_has_nothing_to_copy_and_nothing_to_erase() -> None:
    bench = bench_of()
    with pytest.raises(SlotEmpty):
        states_of(bench).copy(1, NOBODY)
    assert states_of(bench).erase(1, NOBODY) == 0


def test_a_prompt_that_has_left_the_cells_is_copied_from_host_memory() -> None:
    bench = bench_of(num_cells=256, host_tokens=400)
    ended(bench, LONG, slot=0)
    ended(bench, prompt_of(220, start=5), slot=1)
    assert bench.core.scheduler.kv.num_host_tokens == 103, "it had to make room"
    copy = states_of(bench).copy(0, NOBODY)
    assert len(copy.tokens) == 103
    assert len(bench.backend.blobs) == 1, "the blob stays where it is"
    other = bench_of()
    states_of(other).insert(0, NOBODY, copy)
    assert cached(other, ended(other, [*LONG, 1])) == len(LONG)


def test_what_is_left_of_a_prompt_in_the_cache_is_copied_and_no_more_is_told() -> None:
    bench = bench_of(num_cells=256)
    ended(bench, LONG, slot=0, owner="key a")
    bench.now_s += 1
    running = bench.submit([*LONG[:60], *prompt_of(100, start=9)], 40, slot=1)
    for _ in range(6):
        bench.step()
    while bench.core.scheduler.kv.demote_one(bench.now_s):
        pass
    copy = states_of(bench).copy(0, Client("key a"))
    assert copy.tokens.tolist() == LONG[:60]
    bench.run()
    assert bench.answers[running] == bench.expected([*LONG[:60], *prompt_of(100, start=9)], 40)
    other = bench_of()
    states_of(other).insert(0, NOBODY, copy)
    request_id = ended(other, LONG)
    assert (cached(other, request_id), other.answers[request_id]) == (60, other.expected(LONG, 4))


def test_of_a_blob_that_goes_on_with_what_others_have_sent_only_ones_own_is_copied() -> None:
    bench = bench_of(num_cells=256, host_tokens=400)
    ended(bench, LONG, slot=0, owner="key a")
    ended(bench, [*LONG, 5, 6], slot=1, owner="key b")
    ended(bench, prompt_of(220, start=5), slot=1)
    assert any(one.blob_id and len(one.tokens) > 103 for one in bench.core.scheduler.kv.cache)
    kv = bench.core.scheduler.kv
    for holder in [one for one in kv.cache if one.blob_id and len(one.tokens) == 103]:
        kv.drop(holder)
    copy = states_of(bench).copy(0, Client("key a"))
    bench.core.check_cells()
    assert len(copy.tokens) == len(copy.kv) // 8 == 100


def test_a_prompt_that_has_left_the_cache_is_gone() -> None:
    bench = bench_of(num_cells=256)
    ended(bench, LONG, slot=0)
    ended(bench, prompt_of(220, start=5), slot=1)
    with pytest.raises(SlotEmpty):
        states_of(bench).copy(0, NOBODY)


def test_a_state_makes_room_for_itself_among_finished_prompts_alone() -> None:
    copy = copied(LONG)
    bench = bench_of(num_cells=256)
    ended(bench, prompt_of(200, start=5))
    states_of(bench).insert(0, NOBODY, copy)
    bench.core.check_cells()
    running = bench.submit(prompt_of(180, start=9), 60, slot=1)
    for _ in range(7):
        bench.step()
    assert not list(bench.core.scheduler.kv.cache), "what was restored is given up like all others"
    with pytest.raises(NoRoomInCache):
        states_of(bench).insert(0, NOBODY, copy)
    bench.core.check_cells()
    bench.run()
    assert bench.answers[running] == bench.expected(prompt_of(180, start=9), 60)


def test_a_state_that_llama_cpp_does_not_take_leaves_no_trace() -> None:
    copy = copied(LONG)
    bench = bench_of()
    bench.backend.fails_to_restore = True
    with pytest.raises(NotTaken):
        states_of(bench).insert(0, NOBODY, copy)
    bench.core.check_cells()
    assert (bench.backend.num_used(), bench.backend.blobs) == (0, {})
    with pytest.raises(SlotEmpty):
        states_of(bench).copy(0, NOBODY)


def test_a_state_with_fewer_cells_than_tokens_is_not_taken() -> None:
    copy = copied(LONG)
    short = SlotCopy(copy.tokens, copy.cache_key, copied(prompt_of(50)).kv)
    bench = bench_of()
    with pytest.raises(NotTaken):
        states_of(bench).insert(0, NOBODY, short)
    bench.core.check_cells()
    assert bench.backend.num_used() == 0


def test_restoring_what_is_there_already_takes_no_cells() -> None:
    bench = bench_of()
    ended(bench, LONG, slot=0)
    copy, used = states_of(bench).copy(0, NOBODY), bench.backend.num_used()
    states_of(bench).insert(1, NOBODY, copy)
    assert bench.backend.num_used() == used
    assert len(states_of(bench).copy(1, NOBODY).tokens) == len(copy.tokens), "the other slot has it, too"


def test_what_is_erased_is_computed_again_and_its_cells_are_free() -> None:
    bench = bench_of()
    slot = slot_of(bench, ended(bench, LONG))
    assert states_of(bench).erase(slot, NOBODY) == 103
    bench.core.check_cells()
    assert bench.backend.num_used() == 0
    assert states_of(bench).erase(slot, NOBODY) == 0
    assert cached(bench, ended(bench, [*LONG, 1])) == 0


def test_erasing_leaves_a_longer_prompt_of_somebody_else() -> None:
    bench = bench_of()
    ended(bench, LONG, slot=0, owner="key a")
    longer = [*LONG, *bench.expected(LONG, 4), 5, 6, 7]
    ended(bench, longer, slot=1, owner="key b")
    assert states_of(bench).erase(0, Client("key a")) == 0
    assert cached(bench, ended(bench, [*longer, 1])) == len(longer)


def test_erasing_takes_what_was_kept_on_the_disk_by_itself_with_it(tmp_path: Path) -> None:
    first = bench_of(prompts=PromptFolder.open(tmp_path, "m", "model", 10**9))
    ended(first, LONG)
    first.core.save_prompts(float("inf"))
    prompts = PromptFolder.open(tmp_path, "m", "model", 10**9)
    bench = bench_of(prompts=prompts)
    slot = slot_of(bench, ended(bench, LONG))
    states_of(bench, prompts).erase(slot, NOBODY)
    assert list(tmp_path.rglob("*.kv")) == []
    assert cached(bench, ended(bench, [*LONG, 1])) == 0


def test_prompts_that_were_not_to_be_cached_are_not_remembered() -> None:
    bench = bench_of()
    slot = slot_of(bench, ended(bench, LONG, cache_prompt=False))
    with pytest.raises(SlotEmpty):
        states_of(bench).copy(slot, NOBODY)


def test_a_copy_while_others_run_changes_none_of_their_tokens() -> None:
    bench = bench_of()
    ended(bench, LONG, slot=0)
    running = bench.submit([*LONG, 3], 20, slot=1)
    bench.step()
    bench.core.abort(bench.submit(prompt_of(60, start=9), 4))
    assert len(states_of(bench).copy(0, NOBODY).tokens) == 103
    bench.core.check_cells()
    bench.run()
    assert bench.answers[running] == bench.expected([*LONG, 3], 20)
