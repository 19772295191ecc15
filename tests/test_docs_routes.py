"""docs/routes.md and the README list the routes that exist, with their key scopes."""

from __future__ import annotations

import re
from typing import cast

from aiohttp.hdrs import METH_ANY, METH_HEAD

from router import later
from router.app import all_routes, make_app
from router.services import Services
from tests.test_docs import name_in, quoted, rows, section, text_of


def served_routes() -> set[tuple[str, str]]:
    """Return (method, path) of everything that the application answers."""
    app = make_app(cast(Services, None))
    found = set()
    for route in app.router.routes():
        assert route.resource is not None
        if route.method != METH_HEAD:
            found.add((route.method, route.resource.canonical))
    return found


def told_routes() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the first form of every route of docs/routes.md and its key scope, by method and path."""
    found = {}
    for first, also, scope, _ in rows(text_of("docs/routes.md")):
        method, path = name_in(first).split()
        found |= {(method, one): (path, scope) for one in (path, *quoted(also))}
    return found


def test_the_page_of_routes_lists_every_route_that_exists_and_no_other() -> None:
    assert told_routes().keys() == {route for route in served_routes() if route[0] != METH_ANY}


def test_the_page_of_routes_names_the_scope_of_every_route_and_which_are_the_same() -> None:
    told = told_routes()
    for route in set(all_routes()) - set(later.ROUTES):
        path = re.sub(r":[^}]*\}", "}", route.path)
        first, scope = told[route.method, path]
        assert scope == (" or ".join(route.scopes) or "none"), path
        assert (first != path) == (route.same_as is not None), path
        assert first.startswith(route.same_as or path), path


def test_readme_tells_the_main_routes_as_their_page_does() -> None:
    page, main = told_routes(), rows(section(text_of("README.md"), "## Routes"))
    assert len(main) > 5
    for name, scope, _ in main:
        method, path = name_in(name).split()
        assert page[method, path] == (path, scope)


def test_the_page_of_routes_lists_every_route_that_answers_501() -> None:
    marked = text_of("docs/routes.md").partition("<!-- 501 -->")[2].partition("<!-- end of 501 -->")[0]
    assert quoted(marked) == [re.sub(r"\{.*\}", "…", route.path) for route in later.ROUTES]
    assert {path for method, path in served_routes() if method == METH_ANY} == {
        re.sub(r":[^}]*\}", "}", route.path) for route in later.ROUTES
    }
