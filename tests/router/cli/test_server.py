"""How commands find a server, and what its refusals become at a terminal."""

from __future__ import annotations

import contextlib
import socket
import threading

import httpx
import pytest

from router.cli.live import follow
from router.cli.output import CommandFailed, ExitCode
from router.cli.server import Event, Refused, Server, open_server, read_events, refusal_of
from tests.fakes.corral_http import FakeCorral, Reply, as_events, as_json, as_text, refusal
from tests.support.self_signed import self_signed_server

pytestmark = pytest.mark.usefixtures("fake")  # no key and no address are set but the fake's


def shake_hands(listening: socket.socket) -> None:
    """One client is offered a certificate that nobody has signed."""
    with listening.accept()[0] as connection, contextlib.suppress(OSError):
        self_signed_server().wrap_socket(connection, server_side=True)


def failure(fake: FakeCorral, path: str = "/x") -> CommandFailed:
    with open_server(fake.url) as server, pytest.raises(CommandFailed) as caught:
        server.get(path)
    return caught.value


def test_the_address_is_the_option_then_the_variable_then_where_serve_listens(
    fake: FakeCorral, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_server("http://host:1/").url == "http://host:1"
    assert open_server().url != fake.url, "the variable is read by the option"
    monkeypatch.setenv("CORRAL_HOST", "::")
    monkeypatch.setenv("CORRAL_PORT", "99")
    assert open_server().url == "http://127.0.0.1:99"
    monkeypatch.setenv("CORRAL_HOST", "::1")
    assert open_server().url == "http://[::1]:99"


def test_an_address_for_openai_clients_does_too() -> None:
    assert open_server("http://host:1/v1/").url == "http://host:1"


@pytest.mark.parametrize("address", ["127.0.0.1:18123", "localhost", "my-host.lan:80", "[::1]:99"])
def test_an_address_needs_no_http_before_it(address: str) -> None:
    assert open_server(address).url == f"http://{address}".removesuffix(":80")


def test_a_password_in_the_address_is_not_shown() -> None:
    assert open_server("http://me:secret@host:1").url == "http://host:1"


@pytest.mark.parametrize("address", ["host", "ftp://host", "http://", "http://host:port"])
def test_what_is_no_address_is_wrong_usage(address: str) -> None:
    with pytest.raises(CommandFailed, match="no address of a server") as caught:
        open_server(address)
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_key_goes_with_every_request(fake: FakeCorral, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_API_KEY", " secret\n")
    fake.answers("GET", "/x", {})
    with open_server(fake.url) as server:
        server.get("/x", a=1, left_out=None)
    assert fake.asked[0].headers["Authorization"] == "Bearer secret"
    assert fake.asked[0].query == {"a": "1"}


def test_a_path_in_the_address_goes_before_every_request(fake: FakeCorral) -> None:
    fake.answers("GET", "/behind/a/proxy/x", {})
    with open_server(f"{fake.url}/behind/a/proxy/v1/") as server:
        server.get("/x")
    assert [one.path for one in fake.asked] == ["/behind/a/proxy/x"]


def test_a_key_that_cannot_be_sent_is_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_API_KEY", "schlüssel")
    with pytest.raises(CommandFailed, match="CORRAL_API_KEY has characters"):
        open_server("http://host")


def test_nobody_there_has_a_code_of_its_own_and_a_next_step() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with open_server(f"http://127.0.0.1:{port}") as server, pytest.raises(CommandFailed) as caught:
        server.get("/x")
    assert caught.value.exit_code == ExitCode.NO_SERVER
    assert "corral serve" in caught.value.message
    assert "CORRAL_URL" in caught.value.message


def test_a_name_that_nobody_has_is_told_with_the_systems_words() -> None:
    with open_server("http://no-such-host.invalid") as server, pytest.raises(CommandFailed) as caught:
        server.get("/x")
    assert caught.value.exit_code == ExitCode.NO_SERVER
    assert "no server answers at http://no-such-host.invalid (" in caught.value.message


def test_a_certificate_that_cannot_be_verified_is_no_missing_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=shake_hands, args=(listening,))
        answering.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        with open_server(url) as server, pytest.raises(CommandFailed) as caught:
            server.get("/x")
        answering.join()
    assert "SSL_CERT_FILE" in caught.value.message
    assert caught.value.exit_code == ExitCode.NO_SERVER


def test_a_missing_key_and_a_wrong_one_are_told_apart(fake: FakeCorral, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers("GET", "/x", refusal(401, "no", "invalid_api_key"))
    assert "it wants a key; put a valid one into CORRAL_API_KEY" in failure(fake).message
    monkeypatch.setenv("CORRAL_API_KEY", "wrong")
    found = failure(fake)
    assert "is not one of its keys" in found.message
    assert "wrong" not in found.message
    assert found.exit_code == ExitCode.REFUSED


def test_a_wrong_key_after_many_others_is_a_wrong_key(fake: FakeCorral, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers("GET", "/x", refusal(429, "too many", "too_many_wrong_keys"))
    monkeypatch.setenv("CORRAL_API_KEY", "wrong")
    found = failure(fake)
    assert "is not one of its keys" in found.message
    assert found.exit_code == ExitCode.REFUSED


def test_a_key_without_the_scope_is_refused_in_the_servers_words(fake: FakeCorral) -> None:
    fake.answers("GET", "/x", refusal(403, "this key may not do this: it needs the scope admin", "forbidden"))
    found = failure(fake)
    assert (found.message, found.exit_code) == (
        "this key may not do this: it needs the scope admin",
        ExitCode.REFUSED,
    )


def test_a_model_that_is_not_there_has_a_code_of_its_own(fake: FakeCorral) -> None:
    fake.answers("GET", "/x", refusal(404, "there is no model named 'x'", "model_not_found"))
    found = failure(fake)
    assert found.exit_code == ExitCode.NO_SUCH_MODEL
    assert isinstance(found, Refused)
    assert not found.is_unknown_route


def test_a_model_that_is_not_there_is_known_in_llama_servers_form_too(fake: FakeCorral) -> None:
    error = {"code": 404, "message": "there is no model named 'x'", "type": "not_found_error", "param": "model"}
    fake.answers("GET", "/x", as_json({"error": error}, 404))
    assert failure(fake).exit_code == ExitCode.NO_SUCH_MODEL
    del error["param"]
    fake.answers("GET", "/x", as_json({"error": error}, 404))
    found = failure(fake)
    assert isinstance(found, Refused)
    assert found.is_unknown_route


def test_a_server_that_does_not_know_the_request_may_be_an_older_one() -> None:
    found = refusal_of("http://host", 404, "<html>not here</html>")
    assert "no Corral, or an older one" in found.message
    assert found.is_unknown_route
    assert found.exit_code == ExitCode.FAILED


def test_other_refusals_keep_what_the_server_sent(fake: FakeCorral) -> None:
    fake.answers("GET", "/x", as_json({"errors": [1]}, 422))
    found = failure(fake)
    assert isinstance(found, Refused)
    assert (found.status, found.body) == (422, {"errors": [1]})
    assert "status 422" in found.message


def test_a_server_that_sends_the_client_elsewhere_is_told_with_the_address(fake: FakeCorral) -> None:
    fake.answers("GET", "/x", Reply(301, [b""], headers={"Location": "https://host/x"}))
    assert "https://host/x" in failure(fake).message


def test_what_is_no_json_comes_from_no_corral(fake: FakeCorral) -> None:
    fake.answers("GET", "/x", as_text("<html>"))
    found = failure(fake)
    assert "no Corral" in found.message
    assert found.exit_code == ExitCode.NO_SERVER


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(200, [b"\xff\x00\xff"]), "no Corral"),
        (Reply(200, [b"{}"], headers={"Content-Encoding": "gzip"}), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_no_traceback(fake: FakeCorral, reply: Reply, words: str) -> None:
    fake.answers("GET", "/x", reply)
    found = failure(fake)
    assert words in found.message
    assert found.exit_code == ExitCode.NO_SERVER


def test_a_page_in_place_of_events_is_no_stream_without_any(fake: FakeCorral) -> None:
    fake.answers("GET", "/events", Reply(200, [b"<html>"], "text/html"))
    with open_server(fake.url) as server, pytest.raises(CommandFailed, match="something else than events"):
        list(follow(server))


def test_an_argument_that_is_no_text_cannot_be_sent(fake: FakeCorral) -> None:
    with open_server(fake.url) as server, pytest.raises(CommandFailed, match="no UTF-8") as caught:
        server.post("/x", {"model": "a\udcff"})
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("variable", [("ALL_PROXY", "nonsense://x"), ("SSL_CERT_FILE", "/no/such/file")])
def test_an_environment_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]) -> None:
    monkeypatch.setenv(*variable)
    with pytest.raises(CommandFailed, match="the environment names") as caught:
        open_server("http://host")
    assert caught.value.exit_code == ExitCode.USAGE
    open_server("http://127.0.0.1:1")


def test_events_come_with_their_names_and_comments_are_passed_over(fake: FakeCorral) -> None:
    fake.answers("GET", "/events", as_events(("one", {"a": 1}), ("two", [2])))
    with open_server(fake.url) as server, server.events("GET", "/events") as events:
        assert list(events) == [Event("one", {"a": 1}), Event("two", [2])]


def test_a_stream_is_read_as_the_standard_has_it() -> None:
    lines = [
        "data: 1",
        "",
        ": no",
        "event:x",
        "data:[",
        "data: 2]",
        "id: 7",
        "",
        "event: alone",
        "",
        "data: [DONE]",
        "",
    ]
    assert list(read_events(iter([*lines, "data: 3", ""]))) == [Event("message", 1), Event("x", [2])]


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://127.0.0.1:1", ("https://", "CORRAL_TLS_CLIENT_CERT", "CORRAL_TLS_CLIENT_KEY")),
        ("https://127.0.0.1:1", ("CORRAL_TLS_CLIENT_CERT", "CORRAL_TLS_CLIENT_KEY")),
    ],
)
def test_connection_that_is_closed_at_once_tells_what_to_set(url: str, named: tuple[str, ...]) -> None:
    def drop(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

    client = httpx.Client(base_url=url, transport=httpx.MockTransport(drop))
    with Server(url, client) as server, pytest.raises(CommandFailed) as failed:
        server.get("/status")
    text = str(failed.value)
    assert all(word in text for word in named)
    assert ".;" not in text
