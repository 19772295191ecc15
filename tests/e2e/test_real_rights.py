"""What a real worker may do to the machine, as the system itself tells it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.real_server import Api


async def test_worker_of_a_real_server_has_given_up_its_rights_and_answers(api: Api) -> None:
    assert (await api.complete("narrow", "Once upon a time", 4)).status == 200
    (pid,) = api.server.worker_pids("narrow")
    process = Path(f"/proc/{pid}")
    assert "NoNewPrivs:\t1" in (process / "status").read_text()
    assert re.search(r"Max core file size +0 +0 ", (process / "limits").read_text())
    words = (process / "cmdline").read_text().split("\0")
    assert [Path(word.removeprefix("--writes=")).name for word in words if word.startswith("--writes=")][1:] == [
        "calibration",
        "prompts",
    ]
    async with api.session.get(f"{api.server.url}/admin/logs?model=narrow") as reply:
        assert "rights: no core dumps, no new privileges" in await reply.text()
