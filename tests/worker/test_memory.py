"""What a worker tells of its memory when it has loaded a model."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_gguf import write_tiny_llama
from tests.worker.test_process import start
from worker.memory import read_private, read_rss


def test_private_memory_grows_with_what_is_written_and_is_part_of_all() -> None:
    before = read_private()
    block = bytearray(64 * 2**20)
    assert read_private() - before > 48 * 2**20
    assert len(block) < read_private() <= read_rss()


async def test_a_ready_worker_tells_its_bytes_by_device_and_what_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path)
    async with start(str(path), engine={"device": "cpu"}) as worker:
        status = await worker.ready()
        assert set(status.device_bytes) == {"CPU"}
        assert all(status.device_bytes["CPU"][kind] > 0 for kind in ("weights", "kv", "compute"))
        memory = status.memory_bytes
        assert 0 < memory["process"] < memory["private"] <= memory["rss"]
        assert status.facts is not None
        assert status.facts.device == "cpu"
