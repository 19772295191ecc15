"""The dashboard's files: packaged ones alone, by their whole names, without a key, and never an inline script."""

from __future__ import annotations

from pathlib import Path

import pytest
from yarl import URL

from router.ui import read_web_files
from tests.support.http_side import http_side

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_browsers_are_led_to_the_dashboard(path: str) -> None:
    async with http_side(keys={"api_keys": "user"}) as side:
        for method in ("GET", "HEAD"):
            reply = await side.client.request(method, path, headers=HTML, allow_redirects=False)
            assert (reply.status, reply.headers["Location"]) == (303, "/ui/")


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/plain"])
async def test_others_get_the_list_of_routes(accept: str | None) -> None:
    async with http_side() as side:
        reply = await side.client.get("/", headers={} if accept is None else {"Accept": accept})
        assert (reply.status, reply.content_type) == (200, "text/plain")
        assert "GET   /status" in await reply.text()
        assert reply.headers["Vary"] == "Accept"


async def test_page_needs_no_key_and_comes_with_strict_rules_for_the_browser() -> None:
    async with http_side(keys={"api_keys": "user"}) as side:
        reply = await side.client.get("/ui/")
        assert (reply.status, reply.content_type, reply.charset) == (200, "text/html", "utf-8")
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        assert reply.headers["Cache-Control"] == "no-cache"
        assert await reply.text() == await (await side.client.get("/ui/index.html")).text()


async def test_file_that_the_browser_has_is_not_sent_again() -> None:
    async with http_side() as side:
        etag = (await side.client.get("/ui/")).headers["ETag"]
        again = await side.client.get("/ui/", headers={"If-None-Match": etag})
        assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", etag)
        assert (await side.client.get("/ui/", headers={"If-None-Match": '"old"'})).status == 200


@pytest.mark.parametrize(
    "path",
    ["/ui/nothing.js", "/ui/../app.py", "/ui/%2e%2e/app.py", "/ui/..%2fapp.py", "/ui//etc/passwd", "/ui/./index.html"],
)
async def test_no_address_leads_out_of_the_folder(path: str) -> None:
    async with http_side() as side:
        site = f"http://{side.client.host}:{side.client.port}"
        reply = await side.client.session.get(URL(site + path, encoded=True))
        assert reply.status == 404
        assert "there is no route" in (text := await reply.text()) or "no file" in text


def test_every_packaged_file_has_a_type_and_its_name_with_slashes() -> None:
    files = read_web_files()
    assert "index.html" in files
    kinds = {Path(name).suffix: file.content_type for name, file in files.items()}
    assert kinds[".js"] == "text/javascript; charset=utf-8"
    assert kinds[".css"] == "text/css; charset=utf-8"


def test_hidden_files_and_unknown_kinds_are_not_served(tmp_path: Path) -> None:
    for name in ("a.js", ".secret.js", "_draft.js", "notes.md", "sub/b.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert list(read_web_files(tmp_path)) == ["a.js", "sub/b.svg"]


def test_installation_without_the_folder_has_no_files(tmp_path: Path) -> None:
    assert read_web_files(tmp_path / "nothing") == {}
