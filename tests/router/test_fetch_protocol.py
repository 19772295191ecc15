"""The lines between router and fetch process."""

from __future__ import annotations

import pytest

from router.fetch.protocol import (
    MAX_LINE_BYTES,
    Fetched,
    FetchJob,
    FetchProgress,
    SourceError,
    decode_reply,
    encode_reply,
    without_secrets,
)


def test_jobs_survive_the_pipe() -> None:
    job = FetchJob("hf:a/b:Q4_0", "/tmp/é", is_offline=True)
    assert FetchJob.from_line(job.to_line()) == job
    with pytest.raises(ValueError, match="not a fetch job"):
        FetchJob.from_line(b'{"x": 1}\n')


@pytest.mark.parametrize(
    "reply", [FetchProgress("downloading", 1, None, "x"), FetchProgress("joining", 1, 2), Fetched("/a b/ü.gguf")]
)
def test_replies_survive_the_pipe(reply: FetchProgress | Fetched) -> None:
    line = encode_reply(reply)
    assert line.count(b"\n") == 1
    assert decode_reply(line) == reply


def test_errors_survive_the_pipe_however_long() -> None:
    line = encode_reply(SourceError("line\nline " + "é🙂" * 100_000, is_permanent=True, details="🙂" * 99_999 + "!"))
    assert len(line) <= MAX_LINE_BYTES
    error = decode_reply(line)
    assert isinstance(error, SourceError)
    assert error.is_permanent
    assert str(error).startswith("line\nline é🙂")
    assert error.details.endswith("🙂!"), "the last words are kept"


@pytest.mark.parametrize(
    "line", [b"", b"Warning: x\n", b"[1]\n", b'{"progress": {"z": 1}}\n', b"\xff\n", b'{"error": 1}']
)
def test_chatter_is_not_a_reply(line: bytes) -> None:
    assert decode_reply(line) is None


def test_credentials_and_tokens_are_removed_from_what_is_logged() -> None:
    text = "GET https://user:pass@index.example/simple with Bearer abc.def and hf_AbCdEfGhIjKl in https://x/y"
    clean = without_secrets(text)
    assert clean == "GET https://***@index.example/simple with Bearer *** and *** in https://x/y"


def test_progress_is_told_in_words() -> None:
    assert FetchProgress("downloading", 13_000_000, 89_000_000, "part 2 of 6").text == (
        "downloading part 2 of 6, 13 of 89 MB"
    )
    assert FetchProgress("joining", 13_000_000, None).text == "joining, 13 MB"
