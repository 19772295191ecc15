"""Servers of several models are told the same, and replies are read to their end."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
import yaml

from bench.fleet_rows import FLEET_ROWS
from bench.fleet_scenarios import quantile
from bench.fleet_servers import Fleet, _corral, _llama_server
from bench.models import GEMMA3, SMOLLM2
from bench.raw_http import Asked, is_complete
from router.catalog_parser import read_catalog

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("reply", "is_whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-", False),
        (HEAD + b"Content-Length: 5\r\n\r\nhell", False),
        (HEAD + b"Content-Length: 5\r\n\r\nhello", True),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", False),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", True),
    ],
)
def test_a_reply_is_complete_when_its_last_byte_has_come(reply: bytes, is_whole: bool) -> None:
    assert is_complete(reply) is is_whole


def test_a_reply_that_tells_a_failure_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="503"):
        is_complete(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")


def test_only_a_worker_gets_the_headers_that_a_router_sets() -> None:
    routed = Asked.of(("127.0.0.1", 1), {"a": 1}, is_kept=True).request
    direct = Asked.of("/tmp/s", {"a": 1}, is_kept=False).request
    assert b"X-Corral" not in routed
    assert b"X-Corral-Seed: 1\r\n" in direct
    assert b"Connection: close" in direct
    assert b"Connection" not in routed


def test_quantiles_are_values_that_were_measured() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("row", FLEET_ROWS, ids=lambda row: row.key)
def test_both_servers_are_told_the_same_models(row: object, tmp_path: Path) -> None:
    fleet = getattr(row, "fleet")  # noqa: B009 - rows of other kinds have none
    assert isinstance(fleet, Fleet)
    files = fleet.files({SMOLLM2: tmp_path / "s.gguf", GEMMA3: tmp_path / "g.gguf"})
    assert len(files) == len(fleet.models) + fleet.num_more
    ours = _corral(tmp_path, 1, fleet, files)
    catalogue = Path(next(word for word in ours if word.endswith(".yaml"))).read_text()
    told = yaml.safe_load(catalogue)
    peer = _llama_server(Path("llama-server"), tmp_path, 1, fleet, files, 2)
    presets = configparser.ConfigParser()
    presets.read_string("[version]\n" + (tmp_path / "models.ini").read_text())
    assert {name: Path(entry["model"]) for name, entry in told["models"].items()} == files
    assert {name: Path(presets[name]["model"]) for name in presets.sections() if name != "version"} == files
    assert int(peer[peer.index("--models-max") + 1]) == (told.get("limits", {}).get("max_loaded") or 0)
    assert int(peer[peer.index("-c") + 1]) == fleet.slots * told["defaults"]["context"]
    assert not read_catalog(catalogue, tmp_path / "models.yaml").problems
