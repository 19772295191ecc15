"""What is left of paths in sentences for those who are not told where files lie."""

from __future__ import annotations

import pytest

from router.folder_names import without_folders


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("/nowhere/deep/x.gguf does not exist", "x.gguf does not exist"),
        ("/x.gguf does not exist", "x.gguf does not exist"),
        ("cannot be loaded: /home/Jo Smith/models/x.gguf does not exist.", "cannot be loaded: x.gguf does not exist."),
        ("'/srv/a/x.gguf': Permission denied", "'x.gguf': Permission denied"),
        ("~/models/x.gguf is a folder", "x.gguf is a folder"),
        ("./models/x.gguf and ../other/y.gguf", "x.gguf and y.gguf"),
        ("(/a/x.gguf, /b/c/y.gguf)", "(x.gguf, y.gguf)"),
    ],
)
def test_of_a_path_the_name_is_left(told: str, left: str) -> None:
    assert without_folders(told) == left


@pytest.mark.parametrize(
    "told",
    [
        "Put it right, then POST /admin/reload or restart the server.",
        "GET /v1/models lists them all",
        "https://example.org/a/b.gguf answered 404",
        "hf:owner/name/file.gguf was not found",
        "5 MB/s of 2/3",
        "no path at all",
    ],
)
def test_routes_and_addresses_stay(told: str) -> None:
    assert without_folders(told) == told
