"""The systemd units fit the program, and systemd's own tools are content with them. They are not started here."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from router.cli import main
from router.events import FleetLimits
from router.settings import RouterSettings
from tests.support.deploy_files import DEPLOY, ROOT, run, tool, unit

SYSTEMD = DEPLOY / "systemd"
KINDS = ("system", "user")
MAX_EXPOSURE = {"cpu": 1.5, "gpu": 1.9}
"""What docs/operations.md promises, of 10."""


@pytest.fixture(params=KINDS)
def service(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    return unit(SYSTEMD / request.param / "corral.service")


def test_service_runs_a_command_that_exists(service: dict[str, list[str]]) -> None:
    program, command, file = shlex.split(service["ExecStart"][0])
    assert Path(program).name == "corral"
    assert command in main.list_commands(click.Context(main))
    assert Path(file).name == "models.yaml"
    assert (ROOT / "models.yaml").is_file()


def test_service_waits_for_running_answers_before_it_kills(service: dict[str, list[str]]) -> None:
    longest_s = RouterSettings().shutdown_drain_s + FleetLimits().stop_grace_s + 2 * 5.0
    assert float(service["TimeoutStopSec"][0]) >= longest_s
    assert service["KillMode"] == ["mixed"], "workers are stopped by the router, which lets them finish"


def test_service_reports_by_itself_and_reloads_by_the_signal_that_corral_knows(service: dict[str, list[str]]) -> None:
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert float(service["WatchdogSec"][0]) >= 30, "a busy machine is no dead one"


@pytest.mark.parametrize("kind", KINDS)
def test_socket_has_the_address_that_corral_has_by_itself_and_the_service_needs_it(kind: str) -> None:
    settings = RouterSettings()
    socket = unit(SYSTEMD / kind / "corral.socket")
    assert socket["ListenStream"] == [f"{settings.host}:{settings.port}"]
    assert "Accept" not in socket, "each connection would get a server of its own"
    assert unit(SYSTEMD / kind / "corral.service")["Requires"] == ["corral.socket"]


def test_variant_for_gpus_opens_what_drivers_need_and_nothing_else() -> None:
    strict, more = unit(SYSTEMD / "system" / "corral.service"), unit(SYSTEMD / "system/corral.service.d/gpu.conf")
    loosened = {name for name, values in more.items() if values[-1] == "no"}
    assert loosened == {"PrivateDevices", "MemoryDenyWriteExecute", "PrivateUsers"}
    assert all(strict[name] == ["yes"] for name in loosened)
    assert more["DevicePolicy"] == ["closed"]


@pytest.mark.deploy
@pytest.mark.parametrize("kind", KINDS)
def test_systemd_understands_every_line(kind: str, tmp_path: Path) -> None:
    folder = _installed(kind, tmp_path)
    user = ["--user"] if kind == "user" else []
    (tmp_path / "run").mkdir(mode=0o700)
    files = sorted(folder.glob("corral.s*[a-z]"))
    units = [path for path in files if path.is_file()]
    assert len(units) == 2
    run(tool("systemd-analyze"), *user, "verify", *units, env={"XDG_RUNTIME_DIR": str(tmp_path / "run")})


@pytest.mark.deploy
@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_exposure_is_as_low_as_the_documentation_says(variant: str, tmp_path: Path) -> None:
    folder = _installed("system", tmp_path)
    if variant == "cpu":
        shutil.rmtree(folder / "corral.service.d")
    told = run(tool("systemd-analyze"), "security", "--offline=true", folder / "corral.service")
    (level,) = re.findall(r"Overall exposure level for corral.service: ([\d.]+)", told)
    assert float(level) <= MAX_EXPOSURE[variant]
    assert f"{MAX_EXPOSURE[variant]}" in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def _installed(kind: str, tmp_path: Path) -> Path:
    """Return a folder with these units, in which the program is one that is there."""
    folder = tmp_path / "units"
    shutil.copytree(SYSTEMD / kind, folder)
    service = folder / "corral.service"
    text = service.read_text(encoding="utf-8")
    changed = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    assert changed != text
    service.write_text(changed, encoding="utf-8")
    return folder
