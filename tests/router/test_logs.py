"""Log lines are for eyes on a terminal and for machines elsewhere."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from aiohttp.http_exceptions import BadStatusLine

from router.fleet_log import fields
from router.logs import is_for_people, set_up_logging
from router.settings import LogFormat


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_json_line_has_the_message_and_the_extra_fields() -> None:
    stream = io.StringIO()
    set_up_logging("info", LogFormat.AUTO, stream)
    logging.getLogger("router.x").info("ready %s", "now\nthen", extra={"model": "smol", "load_s": 1.5})
    (line,) = lines(stream)
    fields = json.loads(line)
    assert fields["message"] == "ready now\nthen"
    assert (fields["model"], fields["load_s"]) == ("smol", 1.5)
    assert (fields["level"], fields["logger"]) == ("info", "router.x")
    assert fields["time"].endswith("Z")


def test_fields_that_the_message_says_in_words_are_in_the_json_line_alone() -> None:
    for format_ in (LogFormat.TEXT, LogFormat.JSON):
        stream = io.StringIO()
        set_up_logging("info", format_, stream)
        logging.getLogger("router.fleet").info("smol: ready in 1.5 s", extra=fields("smol", "ready", 1.5))
        (line,) = lines(stream)
        if format_ is LogFormat.TEXT:
            assert line.endswith("smol: ready in 1.5 s")
        else:
            told = json.loads(line)
            assert (told["model"], told["state"], told["seconds"]) == ("smol", "ready", 1.5)
            assert "_fields" not in told


def test_exception_is_a_field_of_its_json_line() -> None:
    stream = io.StringIO()
    set_up_logging("info", LogFormat.JSON, stream)
    try:
        raise KeyError("oops")
    except KeyError:
        logging.getLogger("x").exception("failed")
    (line,) = lines(stream)
    assert "KeyError" in json.loads(line)["exception"]


def test_text_line_shows_several_values_with_commas() -> None:
    stream = io.StringIO()
    set_up_logging("info", LogFormat.TEXT, stream)
    logging.getLogger("x").info("listening", extra={"models": ["smol", "gemma3"], "empty": []})
    assert lines(stream)[0].endswith('listening models=smol,gemma3 empty=""')


def test_text_line_shows_fields_and_cannot_be_forged_by_line_breaks() -> None:
    stream = io.StringIO()
    set_up_logging("info", LogFormat.TEXT, stream)
    logging.getLogger("x").warning("hello\nERROR fake", extra={"model": "a b\n", "num": 3})
    (line,) = lines(stream)
    assert "WARNING hello\\nERROR fake" in line
    assert 'model="a b\\n"' in line
    assert "num=3" in line
    assert "\033" not in line


def test_terminal_gets_text_with_colour() -> None:
    stream = Terminal()
    assert is_for_people(LogFormat.AUTO, stream)
    assert not is_for_people(LogFormat.JSON, stream)
    set_up_logging("info", LogFormat.AUTO, stream)
    logging.getLogger("x").error("bad")
    assert "\033[31mERROR" in stream.getvalue()


def test_level_is_respected() -> None:
    stream = io.StringIO()
    set_up_logging("warning", LogFormat.TEXT, stream)
    logging.getLogger("x").info("no")
    assert stream.getvalue() == ""


def test_bytes_that_are_no_http_leave_no_traceback() -> None:
    stream = io.StringIO()
    set_up_logging("info", LogFormat.TEXT, stream)
    server = logging.getLogger("aiohttp.server")
    try:
        raise BadStatusLine("\x16\x03\x01")
    except BadStatusLine:
        server.exception("Error handling request from %s", "1.2.3.4")
    assert stream.getvalue() == ""
    try:
        raise RuntimeError("ours")
    except RuntimeError:
        server.exception("Error handling request from %s", "1.2.3.4")
    assert "RuntimeError" in stream.getvalue()
