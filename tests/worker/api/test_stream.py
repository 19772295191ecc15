"""One request from submission to its last frame: order, text, resume frames, stops, ends and aborts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.engine import IM_START, FakeEngine, FakeVocabulary, Script
from tests.fakes.reply import PlainFormatter, Run, play, settle
from worker.api.served import Job, ServedModel
from worker.api.stream import Reply, failure
from worker.api.usage import Totals
from worker.contract import FrameDecoder, FrameType
from worker.engine.request import FinishReason, GenerationRequest
from worker.errors import EngineGone, GenerationFailed, NoChatTemplate, RequestError

HELLO = FakeVocabulary().words["Hello"]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


async def test_a_stream_opens_once_carries_each_step_and_closes_once() -> None:
    run = await play(b"ab", b"c", b"d")
    assert run.text == "0<0:ab;0:c;0:d;0>stop!;done"
    assert run.end["finish_reasons"] == ["stop"]
    assert run.end["outcome"] == "ok"


async def test_every_step_is_one_write_with_its_resume_frame_behind_its_data() -> None:
    run = await play(b"ab", b"c")
    kinds = [[frame.type for frame in write] for write in run.writes]
    assert kinds == [
        [FrameType.DATA, FrameType.RESUME],
        [FrameType.DATA, FrameType.RESUME, FrameType.DATA, FrameType.END],
    ]


async def test_resume_frames_list_every_token_once_in_order() -> None:
    run = await play(b"ab", b"c", b"d")
    assert [[(one["choice"], one.get("token_ids", [])) for one in step] for step in run.resumes] == [
        [(0, [97, 98])],
        [(0, [99])],
        [(0, [100])],
    ]
    assert run.resumes[-1][0]["finish"] == "stop"


async def test_the_end_frame_tells_usage_and_timings() -> None:
    run = await play(b"ab", b"c")
    assert run.end["usage"]["prompt_tokens"] == 3
    assert run.end["usage"]["completion_tokens"] == 3
    assert run.end["timings"]["predicted_n"] == 3
    assert run.end["timings"]["prompt_ms"] == 500.0


async def test_a_character_is_sent_when_it_is_whole_and_its_tokens_are_told_as_they_come() -> None:
    first, second, third, fourth = "😀".encode()
    run = await play([97, first], [second], [third], [fourth])
    assert run.text == "0<0:a;0:😀;0>stop!;done"
    assert run.told_tokens == [[97, first], [second], [third], [fourth]]


async def test_a_character_cut_by_the_limit_becomes_one_replacement_character() -> None:
    whole = "é中".encode()
    run = await play(whole[:2], whole[2:4], finish=LENGTH)
    assert run.text == "0<0:é;0:�;0>length!;done"
    assert run.told_tokens[-1] == list(whole[2:4])


async def test_streamed_pieces_join_to_the_text_of_the_whole_reply() -> None:
    steps = [[byte] for byte in "añ😀👩‍👩‍👧中 x".encode()]
    streamed, whole = await play(*steps), await play(*steps, is_stream=False)
    pieces = [part.split(":")[1] for part in streamed.text.split(";") if ":" in part]
    assert "".join(pieces) == "añ😀👩‍👩‍👧中 x"
    assert whole.text == "añ😀👩‍👩‍👧中 x>stop"


async def test_a_stop_string_over_several_tokens_ends_the_text_before_it_and_is_never_shown() -> None:
    run = await play(b"K", b"L", b"xK", b"L", b"M", b"zz", b"zz", b"zz", b"zz", stop=("KLM",))
    assert run.text == "0<0:KLx;0>stop!;done"
    assert run.engine.finished == [(1, 6)]
    assert run.end["usage"]["completion_tokens"] == 6
    told = [token for step in run.told_tokens for token in step]
    assert told[:6] == list(b"KLxKLM")


async def test_a_stop_string_inside_one_step_ends_the_engine_s_work_at_once() -> None:
    run = await play(b"a", b"bXc", b"more", stop=("X",))
    assert run.text == "0<0:a;0:b;0>stop!;done"
    assert run.engine.finished == [(1, 3)]


async def test_a_stop_string_in_the_last_step_wins_over_the_limit() -> None:
    run = await play(b"a", b"bXc", finish=LENGTH, stop=("X",))
    assert run.text == "0<0:a;0:b;0>stop!;done"
    assert run.engine.finished == []
    assert run.end["usage"]["completion_tokens"] == 3


async def test_text_that_might_have_become_a_stop_string_is_sent_at_the_end() -> None:
    run = await play(b"a", b"KL", finish=LENGTH, stop=("KLM",))
    assert run.text == "0<0:a;0:KL;0>length!;done"


async def test_a_stop_string_at_the_very_start_gives_an_empty_answer() -> None:
    run = await play(b"X", b"y", b"z", stop=("X",))
    assert run.text == "0<0>stop!;done"
    assert (await play(b"X", b"y", b"z", stop=("X",), is_stream=False)).text == ">stop"


async def test_an_answer_without_any_token_is_opened_and_closed() -> None:
    run = await play(b"")
    assert run.text == "0<0>stop!;done"
    assert run.told_tokens == [[]]


async def test_each_piece_comes_with_the_picks_of_its_tokens() -> None:
    steps = (b"ab", b"c")
    assert (await play(*steps, num_logprobs=0)).text == "0<0:ab[97, 98];0:c[99];0>stop!;done"
    assert (await play(*steps, num_logprobs=0, is_stream=False)).text == "abc>stop[97, 98, 99]"
    assert (await play(*steps)).text == "0<0:ab;0:c;0>stop!;done"


async def test_picks_of_an_unfinished_character_come_with_the_character() -> None:
    first, second, third, fourth = "😀".encode()
    run = await play([97, first], [second], [third], [fourth, 98], num_logprobs=0)
    assert run.text == f"0<0:a[97];0:😀b[{first}, {second}, {third}, {fourth}, 98];0>stop!;done"


async def test_picks_of_held_text_come_when_it_is_shown() -> None:
    run = await play(b"aK", b"L", b"x", b"K", finish=LENGTH, stop=("KLM",), num_logprobs=0)
    assert run.text == "0<0:a[97];0:KLx[75, 76, 120];0:K[75];0>length!;done"


async def test_pick_of_a_token_whose_text_is_shown_in_part_waits_for_the_rest() -> None:
    run = await play([HELLO], [97], finish=LENGTH, stop=("lox",), num_logprobs=0)
    assert run.text == f"0<0:Hel;0:loa[{HELLO}, 97];0>length!;done"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_picks_end_with_the_token_that_completes_a_stop_string(is_stream: bool) -> None:
    run = await play(b"a", b"bX", b"Yc", b"more", stop=("XY",), num_logprobs=0, is_stream=is_stream)
    streamed, whole = "0<0:a[97];0:b[98];0>stop![88, 89];done", "ab>stop[97, 98, 88, 89]"
    assert run.text == (streamed if is_stream else whole)
    assert run.end["usage"]["completion_tokens"] == 4


async def test_picks_of_a_stop_string_come_with_the_text_before_it_if_there_is_some() -> None:
    run = await play(b"a", b"bXYc", b"more", stop=("XY",), num_logprobs=0)
    assert run.text == "0<0:a[97];0:b[98, 88, 89];0>stop!;done"


async def test_pick_of_a_token_without_text_comes_with_the_next_piece_or_the_end() -> None:
    run = await play(b"a", [IM_START], b"b", [IM_START], num_logprobs=0)
    assert run.text == f"0<0:a[97];0:b[{IM_START}, 98];0>stop![{IM_START}];done"
    assert run.told_tokens == [[97], [IM_START], [98], [IM_START]]


async def test_picks_of_steps_that_are_sent_as_one_stay_in_order_and_with_their_choice() -> None:
    run = Run(FakeEngine(), n=2, num_logprobs=0)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(2)
    run.may_write.clear()
    for first, second in ((b"a", b"p"), (b"b", b""), (b"c", b"qr")):
        run.engine.step({1: first, 2: second})
        await settle()
    run.engine.step({1: b"", 2: b"s"}, finish=STOP)
    run.may_write.set()
    await task
    assert run.text == "0<0:a[97];1<1:p[112];0:bc[98, 99];0>stop;1:qrs[113, 114, 115];1>stop!;done"


async def test_choices_end_each_by_itself_and_the_totals_come_with_the_last() -> None:
    engine = FakeEngine(answers=[Script([b"a"]), Script([b"b", b"c", b"d"], LENGTH)])
    run = Run(engine, n=2)
    await run.reply.run()
    assert run.text == "0<0:a;0>stop;1<1:b;1:c;1:d;1>length!;done"
    assert run.end["finish_reasons"] == ["stop", "length"]
    assert run.end["usage"]["completion_tokens"] == 4


async def test_choices_of_one_step_share_one_data_frame() -> None:
    run = Run(FakeEngine(), n=2)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(2)
    run.engine.step({1: b"a", 2: b"b"})
    await settle()
    assert [frame.type for frame in run.writes[0]] == [FrameType.DATA, FrameType.RESUME]
    assert [one["choice"] for one in run.resumes[0]] == [0, 1]
    assert run.text == "0<0:a;1<1:b;"
    run.engine.step({1: b"", 2: b""}, finish=STOP)
    await task


async def test_steps_that_a_slow_client_has_not_taken_are_sent_as_one() -> None:
    run = Run(FakeEngine())
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(1)
    run.may_write.clear()
    for step in (b"a", b"b", b"c"):
        run.engine.step({1: step})
        await settle()
    run.engine.step({1: b"d"}, finish=STOP)
    run.may_write.set()
    await task
    assert run.text == "0<0:a;0:bcd;0>stop!;done"
    assert len(run.writes) == 2


async def test_a_reply_that_is_not_streamed_is_written_once() -> None:
    run = await play(b"a", b"b", is_stream=False)
    assert [frame.type for frame in run.frames] == [FrameType.DATA, FrameType.END]
    assert len(run.writes) == 1


async def test_an_error_of_the_engine_is_raised_after_what_was_sent() -> None:
    run = Run(FakeEngine(answers=[Script([b"a", b"b"], FinishReason.ERROR, error="no cells left")]))
    with pytest.raises(GenerationFailed, match="no cells left") as caught:
        await run.reply.run()
    assert run.text == "0<0:a;"
    assert (caught.value.status, caught.value.outcome) == (500, "error")


async def test_an_error_of_one_choice_aborts_the_others() -> None:
    run = Run(FakeEngine(), n=3)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(3)
    run.engine.step({2: b""}, finish=FinishReason.ERROR, error="broken")
    with pytest.raises(GenerationFailed):
        await task
    assert run.engine.aborted == [1, 3]


async def test_cancelling_aborts_every_choice_at_once() -> None:
    run = Run(FakeEngine(), n=3)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(3)
    run.engine.step({1: b"a"}, finish=STOP)
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.engine.aborted == [2, 3]
    assert run.engine.running == []


async def test_a_client_that_is_gone_when_written_to_aborts_too() -> None:
    engine = FakeEngine(answers=[Script([b"a", b"b"], None)])

    async def broken(_: bytes) -> None:
        raise ConnectionResetError

    job = Job((GenerationRequest((1,), 5),), 1, (), True, PlainFormatter())
    with pytest.raises(ConnectionResetError):
        await Reply(ServedModel("m", engine, engine.vocabulary), job, broken).run()
    assert engine.aborted == [1]


async def test_an_engine_that_has_stopped_is_told_as_503() -> None:
    run = Run(FakeEngine(is_stopped=True))
    with pytest.raises(EngineGone) as caught:
        await run.reply.run()
    assert caught.value.status == 503


async def test_an_engine_that_stops_in_the_middle_is_told_as_503_and_counted_as_error() -> None:
    run = Run(FakeEngine(answers=[Script([b"a", b""], FinishReason.ABORT)]))
    with pytest.raises(EngineGone) as caught:
        await run.reply.run()
    assert (caught.value.status, caught.value.outcome) == (503, "error")


async def test_a_request_that_the_engine_calls_impossible_is_a_400() -> None:
    class Picky(FakeEngine):
        def submit(self, request: GenerationRequest, sink: Any) -> Any:
            raise ValueError("no room")

    with pytest.raises(RequestError, match="no room") as caught:
        await Run(Picky()).reply.run()
    assert caught.value.status == 400


def test_a_refusal_is_an_error_frame_and_an_end_frame() -> None:
    decoder = FrameDecoder()
    error, end = decoder.feed(failure(NoChatTemplate("none"), Totals()))
    assert error.type is FrameType.ERROR
    assert json.loads(error.payload) == {
        "status": 400,
        "code": "no_chat_template",
        "message": "none",
        "param": None,
        "retry_after_s": None,
    }
    assert end.type is FrameType.END
    assert json.loads(end.payload)["outcome"] == "rejected"


def test_control_tokens_have_no_text() -> None:
    vocabulary = FakeVocabulary()
    assert vocabulary.piece(258) == b""
    assert vocabulary.piece(258, special=True) == b"<|im_start|>"
