"""Each look at the installation, the machine and the address tells what is wrong, and what to do about it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from router.doctor import installation, machine
from router.doctor.backend import Build, check_build, explain_failure
from router.doctor.findings import Level
from router.doctor.ports import check_address, check_addresses, corral_at

X86 = "processor : 0\nflags : fpu avx avx2 fma f16c avx512f\n\nprocessor : 1\nflags : other\n"

# --- installation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("3.12.1", ">=3.12,<4", True),
        ("3.11.9", ">=3.12,<4", False),
        ("4.0", ">=3.12,<4", False),
        ("4.0.0rc1", "<4", False),
        ("1.0", "==1.0.0", True),
        ("1.1", "!=1.1", False),
        ("1.4.5", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("2.0", "", True),
        ("6.0.3", ">6,<=7", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, bounds: str, fits: bool) -> None:
    assert installation.is_within(version, bounds) is fits


def test_requirements_are_read_with_and_without_markers() -> None:
    plain = installation.parse_requirement("aiohttp<4,>=3.12")
    assert (plain.name, plain.bounds, plain.is_extra) == ("aiohttp", "<4,>=3.12", False)
    extra = installation.parse_requirement("openai<4,>=1.60; extra == 'demo'")
    assert (extra.name, extra.is_extra) == ("openai", True)
    marked = installation.parse_requirement('uvloop<1,>=0.21; sys_platform != "win32"')
    assert (marked.name, marked.bounds, marked.is_extra) == ("uvloop", "<1,>=0.21", False)


def test_own_installation_is_sound() -> None:
    assert [finding for finding in installation.check_installation() if finding.level is not Level.OK] == []


def test_library_that_cannot_be_imported_is_named_with_the_command_that_helps() -> None:
    (finding,) = installation.check_imports(["json", "no_such_library"])
    assert finding.level is Level.FAIL
    assert "no_such_library" in finding.text
    assert "pip install" in finding.advice[0]


def test_library_that_ends_python_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos.kill(os.getpid(), 9)\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (finding,) = installation.check_imports(["json", "deadly", "os"])
    assert "importing deadly ended Python" in finding.text


# --- llama.cpp ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "status", "words", "advice"),
    [
        ("ModuleNotFoundError: No module named 'llama_cpp'", 1, "is not installed", "pip install"),
        ("OSError: libgomp.so.1: cannot open shared object file: No such file", 1, "libgomp", "apt install libgomp1"),
        ("RuntimeError: libcudart.so.12: cannot open shared object file", 1, "libcudart", "LD_LIBRARY_PATH"),
        ("RuntimeError: libamdhip64.so.6: cannot open shared object file", 1, "libamdhip64", "/opt/rocm/lib"),
        ("libvulkan.so.1: cannot open shared object file", 1, "libvulkan", "libvulkan1"),
        ("", -4, "another processor", "--force-reinstall"),
        ("oh\n", -11, "killed by signal 11: oh", "--force-reinstall"),
        ("something odd", 1, "something odd", "--force-reinstall"),
    ],
)
def test_failure_to_load_is_explained(said: str, status: int, words: str, advice: str) -> None:
    finding = explain_failure(said, status)
    assert finding.level is Level.FAIL
    assert words in finding.text
    assert any(advice in step for step in finding.advice)


def build(*features: str) -> Build:
    return Build("0.3.36", "/lib", ("CPU",), False, features)


@pytest.mark.parametrize(
    ("features", "level", "words"),
    [
        (("AVX = 1", "AVX2 = 1", "FMA = 1", "F16C = 1", "AVX512 = 1"), Level.OK, "AVX512, AVX2, AVX"),
        (("AVX = 1", "AVX2 = 0", "FMA = 1", "F16C = 1"), Level.WARN, "the processor has AVX2, which"),
        (("AVX = 1", "AVX2 = 1", "FMA = 1", "F16C = 1"), Level.OK, "processor features in use: AVX2, AVX"),
    ],
)
def test_build_for_a_lesser_processor_is_told(
    tmp_path: Path, features: tuple[str, ...], level: Level, words: str
) -> None:
    (tmp_path / "cpuinfo").write_text(X86, encoding="ascii")
    last = check_build(build(*features), tmp_path / "cpuinfo")[-1]
    assert last.level is level
    assert words in last.text


def test_build_is_told_where_the_processor_cannot_be_asked(tmp_path: Path) -> None:
    assert [one.level for one in check_build(build("NEON = 1"), tmp_path / "none")] == [Level.OK, Level.OK]


# --- the machine -------------------------------------------------------------------------------------------


def test_cache_folder_that_does_not_exist_yet_is_fine_and_is_not_made(tmp_path: Path) -> None:
    (finding,) = machine.check_cache_folder(tmp_path / "a" / "b")
    assert finding.level is not Level.FAIL
    assert list(tmp_path.iterdir()) == []


def test_cache_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    (finding,) = machine.check_cache_folder(tmp_path / "cache")
    assert finding.level is Level.FAIL
    assert "CORRAL_CACHE" in finding.advice[0]


def test_cache_folder_that_cannot_be_made_is_told() -> None:
    (finding,) = machine.check_cache_folder(Path("/dev/null/cache"))
    assert "cannot be written to" in finding.text


def test_folder_that_cannot_be_looked_at_ends_no_report(tmp_path: Path) -> None:
    hidden = tmp_path / ("x" * 300)  # a name that no file system takes
    assert machine.check_cache_folder(hidden / "cache")


def test_place_for_sockets_is_the_first_that_will_do(tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 90)
    assert machine.check_runtime_dir([too_long, Path("/tmp")]).level is Level.OK
    finding = machine.check_runtime_dir([too_long, Path("/none")])
    assert finding.level is Level.FAIL
    assert "too long" in finding.text
    assert "is not there" in finding.text


def test_clock_before_the_installation_is_told(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    assert machine.check_clock(time.time(), tmp_path / "own.py") == []
    (finding,) = machine.check_clock(1_000_000.0, tmp_path / "own.py")
    assert "1970" in finding.text


# --- the address -------------------------------------------------------------------------------------------


class _Answers(BaseHTTPRequestHandler):
    """A server that says what its class is told; a number is a status."""

    said: dict[str, object] = {}  # noqa: RUF012 - set once for all of a test's requests

    def do_GET(self) -> None:
        said = self.said.get(self.path, {})
        body = json.dumps(said).encode()
        self.send_response(said if isinstance(said, int) else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def answering() -> Iterator[str]:
    """The port of a server that answers as Corral 9.9 does."""
    _Answers.said = {"/api/version": {"version": "0.1", "corral": "9.9"}, "/health": {"status": "ok"}}
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield str(server.server_port)
    server.shutdown()
    server.server_close()
    thread.join()


def test_running_server_of_this_release_is_fine(answering: str) -> None:
    (finding,) = check_address({"CORRAL_PORT": answering}, "9.9")
    assert finding.level is Level.OK
    assert "Corral 9.9 runs" in finding.text


def test_running_server_of_another_release_wants_a_restart(answering: str) -> None:
    (finding,) = check_address({"CORRAL_PORT": answering}, "10.0")
    assert finding.level is Level.WARN
    assert "restart" in finding.advice[0]


def test_port_of_another_program_is_told(answering: str) -> None:
    _Answers.said = {}
    (finding,) = check_address({"CORRAL_PORT": answering}, "9.9")
    assert finding.level is Level.FAIL
    assert "is taken by" in finding.text
    assert any("CORRAL_PORT" in step for step in finding.advice)


@pytest.mark.parametrize(
    ("environ", "level", "words"),
    [
        ({"CORRAL_PORT": "0"}, Level.OK, "any free port"),
        ({"CORRAL_PORT": "many"}, Level.FAIL, "is no port"),
        ({"CORRAL_PORT": "70000"}, Level.FAIL, "is no port"),
        ({"CORRAL_HOST": "192.0.2.1"}, Level.FAIL, "no address of this machine"),
        ({"CORRAL_HOST": "a..b"}, Level.FAIL, "no address of this machine"),
    ],
)
def test_address_that_cannot_be_had_is_told(environ: dict[str, str], level: Level, words: str) -> None:
    (finding,) = check_address(environ, None)
    assert finding.level is level
    assert words in finding.text


def test_free_port_is_free() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    (finding,) = check_address({"CORRAL_PORT": str(port)}, None)
    assert finding.level is Level.OK
    assert "is free" in finding.text


def test_server_that_the_commands_talk_to_is_looked_for(answering: str) -> None:
    environ = {"CORRAL_PORT": "0", "CORRAL_URL": f"http://127.0.0.1:{answering}/v1/"}  # as OpenAI's clients have it
    assert [finding.level for finding in check_addresses(environ, "9.9")] == [Level.OK, Level.OK]
    assert check_addresses(environ, "10.0")[1].level is Level.WARN
    _Answers.said = {}
    assert "is no Corral" in check_addresses(environ, "9.9")[1].text


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[", "http://x:y"])
def test_url_where_nobody_answers_is_told(url: str) -> None:
    _, finding = check_addresses({"CORRAL_PORT": "0", "CORRAL_URL": url}, "9.9")
    assert finding.level is Level.WARN
    assert "no server answers" in finding.text


def test_url_that_is_none_is_told_as_that() -> None:
    _, finding = check_addresses({"CORRAL_PORT": "0", "CORRAL_URL": "ftp://localhost:8080"}, "9.9")
    assert "CORRAL_URL=ftp://localhost:8080 is no address" in finding.text


def test_server_that_wants_a_key_is_told_to_whoever_has_none(answering: str) -> None:
    _Answers.said["/v1/models"] = 401
    environ = {"CORRAL_PORT": answering}
    (none,) = check_address(environ, "9.9")
    (wrong,) = check_address(environ | {"CORRAL_API_KEY": "x"}, "9.9")
    assert (none.level, wrong.level) == (Level.WARN, Level.WARN)
    assert "wants a key" in none.text
    assert "is not one of its keys" in wrong.text
    _Answers.said["/v1/models"] = {"data": []}
    assert check_address(environ, "9.9")[0].level is Level.OK


def test_a_corral_on_a_port_is_known(answering: str) -> None:
    assert corral_at("0.0.0.0", int(answering)) == "9.9"
    _Answers.said = {}
    assert corral_at("127.0.0.1", int(answering)) is None
