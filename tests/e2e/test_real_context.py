"""What `context` and `slots` mean to a real worker: one request may use all of the context, whatever `slots` is."""

from __future__ import annotations

from tests.support.real_server import Api


async def test_one_request_may_use_the_whole_context_of_a_model_with_many_slots(api: Api) -> None:
    """`wide` has eight slots of 256 tokens; an eighth of 256 would be 32."""
    answer = await api.complete("wide", "one " * 200, 4, ignore_eos=True)
    assert answer.status == 200
    assert answer.counts[0] > 190
    entry = await api.get("/v1/models/wide")
    assert (entry["context_length"], entry["max_model_len"], entry["slots"]) == (256, 256, 8)
    assert entry["kv_tokens"] == 8 * 256
    assert {slot["n_ctx"] for slot in await api.slots("wide")} == {256}
    refused = await api.complete("wide", "one " * 300, 4)
    assert refused.status == 400
    assert "256" in refused.body["error"]["message"]
