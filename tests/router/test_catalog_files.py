"""Catalogues as they lie on the disk: YAML files with templates, single GGUF files, folders of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.catalog_files import MAX_CATALOG_BYTES, check, load_catalog
from router.catalog_problems import CatalogError, Problem
from router.fetch.protocol import SourceError
from router.references import PathReference, Reference


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def touch(folder: Path, *names: str) -> None:
    for name in names:
        write(folder / name, "GGUF")


def only_message(path: Path) -> str:
    with pytest.raises(CatalogError) as caught:
        load_catalog(path)
    (problem,) = caught.value.problems
    assert check(path) == [problem]
    return problem.message


# --- YAML files -------------------------------------------------------------------------------------------


def test_a_yaml_file_is_loaded_with_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "models.yaml", "models: {a: a.gguf}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("models.yaml", "./models.yaml"):
        served = load_catalog(Path(name))
        assert served.path == tmp_path / "models.yaml"
        assert served.models["a"].base_dir == tmp_path
        assert served.models["a"].problem is None


def test_the_folder_of_a_linked_catalogue_is_the_links(tmp_path: Path) -> None:
    real = write(tmp_path / "real" / "models.yaml", "models: {a: a.gguf}\n")
    (tmp_path / "models.yml").symlink_to(real)
    assert load_catalog(tmp_path / "models.yml").models["a"].base_dir == tmp_path


def test_a_template_file_is_read_relative_to_the_catalogue(tmp_path: Path) -> None:
    write(tmp_path / "templates" / "chat.jinja", "{{ messages }}\n")
    path = write(
        tmp_path / "models.yaml",
        "models:\n  a: {model: a.gguf, chat_template: templates/chat.jinja}\n  b: {model: b.gguf}\n",
    )
    served = load_catalog(path)
    assert served.models["a"].chat_template == "{{ messages }}\n"
    assert served.models["a"].chat_template_file == tmp_path / "templates/chat.jinja"
    assert served.models["b"].chat_template is None


def test_the_fingerprint_follows_the_template_files_content(tmp_path: Path) -> None:
    path = write(tmp_path / "models.yaml", "models: {a: {model: a.gguf, chat_template: t.jinja}}\n")
    write(tmp_path / "t.jinja", "{{ one }}")
    before = load_catalog(path).models["a"].fingerprint()
    write(tmp_path / "t.jinja", "{{ two }}")
    assert load_catalog(path).models["a"].fingerprint() != before


def test_a_missing_template_makes_its_model_unavailable_and_harms_no_other(tmp_path: Path) -> None:
    path = write(
        tmp_path / "models.yaml",
        "models:\n  a:\n    model: a.gguf\n    chat_template: t.jinja\n  b: {model: b.gguf}\n",
    )
    served = load_catalog(path)
    problem = served.models["a"].problem
    assert problem is not None
    assert f"the chat template file {tmp_path / 't.jinja'} does not exist" in problem
    assert served.models["a"].policy().unavailable == problem
    assert served.models["b"].problem is None
    (found,) = check(path)
    assert (found.where, found.line, found.column) == ("models.a.chat_template", 4, 20)
    assert found.message == problem


def test_a_missing_template_of_all_models_is_one_problem_of_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "models.yaml", "defaults: {chat_template: t.jinja}\nmodels: {a: a.gguf, b: b.gguf}\n")
    assert [problem.where for problem in check(path)] == ["defaults.chat_template"]
    assert all(spec.problem for spec in load_catalog(path).models.values())


def test_the_name_of_a_built_in_template_is_explained(tmp_path: Path) -> None:
    path = write(tmp_path / "models.yaml", "models: {a: {model: a.gguf, chat_template: chatml}}\n")
    assert "not the name of a built-in template" in check(path)[0].message


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "is empty"), (b"\xff\xfe", "is not UTF-8"), (b"x" * (2**20 + 1), "larger than 1 MiB")]
)
def test_a_template_file_that_cannot_be_used_says_why(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "t.jinja").write_bytes(content)
    path = write(tmp_path / "models.yaml", "models: {a: {model: a.gguf, chat_template: t.jinja}}\n")
    assert words in check(path)[0].message


def test_a_template_path_that_no_system_accepts_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    for text in ('"a\\0b"', "~nobody-of-this-name/x.jinja", "x" * 5000, "."):
        path = write(tmp_path / "models.yaml", f"models: {{a: {{model: a.gguf, chat_template: {text}}}}}\n")
        assert "the chat template file" in check(path)[0].message


def test_key_files_in_the_home_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    path = write(tmp_path / "models.yaml", "keys: {a: {file: ~/k}, b: {file: k}}\nmodels: {a: a.gguf}\n")
    assert [key.file for key in load_catalog(path).keys] == [Path("/home/me/k"), tmp_path / "k"]


def test_all_problems_of_the_text_and_of_the_disk_are_found_together(tmp_path: Path) -> None:
    def locate(reference: Reference, base_dir: Path) -> Path | None:
        assert base_dir == tmp_path
        if isinstance(reference, PathReference):
            raise SourceError(f"{reference.path} does not exist", is_permanent=True)
        return None

    path = write(
        tmp_path / "models.yaml",
        "models:\n  a: {model: a.gguf, slots: 0}\n  b: {model: b.gguf, chat_template: t.jinja}\n  c: hf:o/r:Q4_0\n",
    )
    assert [(problem.where, problem.line) for problem in check(path, locate)] == [
        ("models.a.model", 2),
        ("models.a.slots", 2),
        ("models.b.model", 3),
        ("models.b.chat_template", 3),
    ]


def test_a_missing_model_file_makes_its_model_unavailable_where_files_are_looked_up(tmp_path: Path) -> None:
    def locate(reference: Reference, base_dir: Path) -> Path | None:
        if str(reference) == "a.gguf":
            raise SourceError("a.gguf does not exist", is_permanent=True)
        return base_dir / str(reference)

    path = write(tmp_path / "models.yaml", "models: {a: a.gguf, b: b.gguf}\n")
    served = load_catalog(path, locate)
    assert served.models["a"].problem == "a.gguf does not exist"
    assert served.models["b"].problem is None
    assert load_catalog(path).models["a"].problem is None


def test_check_finds_nothing_wrong_with_a_good_file(tmp_path: Path) -> None:
    assert check(write(tmp_path / "models.yaml", "models: {a: a.gguf}\n")) == []


def test_errors_name_the_file_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "models.yaml", "models: {a: {model: a.gguf, slots: 0}}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CatalogError, match=r"^models\.yaml:1:36: models\.a\.slots: ") as caught:
        load_catalog(Path("models.yaml"))
    assert caught.value.path == Path("models.yaml")


def test_a_file_that_cannot_be_a_catalogue_says_so(tmp_path: Path) -> None:
    assert "no such file or folder" in only_message(tmp_path / "nothing.yaml")
    assert "must be a .yaml file" in only_message(write(tmp_path / "models.toml", "x = 1"))
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_CATALOG_BYTES + 1))
    assert "larger than 8 MiB" in only_message(tmp_path / "big.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in only_message(tmp_path / "pipe.yaml")


def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_bytes(b"models:\n  a: caf\xe9.gguf\n")
    with pytest.raises(CatalogError) as caught:
        load_catalog(path)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (2, 9)
    assert "UTF-8" in problem.message


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_bytes(b"\xef\xbb\xbfmodels: {a: a.gguf}\r\n")
    assert list(load_catalog(tmp_path / "models.yaml").models) == ["a"]


# --- keys of other servers --------------------------------------------------------------------------------


def test_a_model_without_the_key_of_its_server_is_unavailable_and_the_others_are_served(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models:\n  far: {url: 'https://host', url_key_env: FAR_KEY}\n  open: {url: 'https://host'}\n")
    for environ in ({}, {"FAR_KEY": " "}):
        served = load_catalog(path, environ=environ)
        assert served.models["far"].problem is not None
        assert "FAR_KEY is not set" in served.models["far"].problem
        assert served.models["open"].problem is None
        (problem,) = check(path, environ=environ)
        assert (problem.where, problem.line, problem.column) == ("models.far.url_key_env", 2, 43)
    assert load_catalog(path, environ={"FAR_KEY": "k"}).models["far"].problem is None
    assert check(path, environ={"FAR_KEY": "k"}) == []


# --- catalogues that nobody wrote -------------------------------------------------------------------------


def test_a_gguf_file_is_a_catalogue_of_one_model_with_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "SmolLM2-135M.Q4_1.gguf")
    served = load_catalog(tmp_path / "SmolLM2-135M.Q4_1.gguf")
    (spec,) = served.models.values()
    assert spec.name == "SmolLM2-135M.Q4_1"
    assert spec.source == str(tmp_path / "SmolLM2-135M.Q4_1.gguf")
    assert spec.problem is None
    assert served.resolve(None).spec is spec


def test_a_folder_is_a_catalogue_of_the_models_in_it(tmp_path: Path) -> None:
    touch(tmp_path, "b.gguf", "A.GGUF", "notes.txt", ".hidden.gguf", "sub/c.gguf")
    touch(tmp_path, "mmproj-b-f16.gguf", "b-mmproj.gguf")
    (tmp_path / "folder.gguf").mkdir()
    served = load_catalog(tmp_path)
    assert list(served.models) == ["A", "b"]
    assert served.path == tmp_path
    assert check(tmp_path) == []


def test_a_split_model_is_listed_once_under_its_stem(tmp_path: Path) -> None:
    touch(tmp_path, *(f"big-Q4-0000{i}-of-00003.gguf" for i in (1, 2, 3)))
    served = load_catalog(tmp_path)
    assert list(served.models) == ["big-Q4"]
    assert served.models["big-Q4"].source.endswith("big-Q4-00001-of-00003.gguf")
    assert served.models["big-Q4"].problem is None
    assert load_catalog(tmp_path / "big-Q4-00001-of-00003.gguf").models["big-Q4"].problem is None


def test_a_split_model_that_lacks_parts_is_unavailable_and_harms_no_other(tmp_path: Path) -> None:
    touch(tmp_path, "a.gguf", "big-00002-of-00003.gguf")
    served = load_catalog(tmp_path)
    assert served.models["a"].problem is None
    assert "2 of 3 parts are missing, first big-00001-of-00003.gguf" in (served.models["big"].problem or "")
    assert [problem.where for problem in check(tmp_path)] == ["models.big"]


def test_a_later_part_of_a_split_model_asks_for_the_first(tmp_path: Path) -> None:
    touch(tmp_path, "big-00001-of-00002.gguf", "big-00002-of-00002.gguf")
    served = load_catalog(tmp_path / "big-00002-of-00002.gguf")
    assert "give its first part, big-00001-of-00002.gguf" in (served.models["big"].problem or "")


def test_file_names_become_names_that_clients_can_send(tmp_path: Path) -> None:
    touch(tmp_path, "my model.gguf", "my-model.gguf", "a*b.gguf", "x\ty.gguf")
    served = load_catalog(tmp_path)
    assert sorted(served.models) == ["a-b", "my-model", "my-model-2", "x-y"]
    assert served.models["my-model"].problem is None
    assert "cannot be printed" in (served.models["x-y"].problem or "")


def test_a_folder_without_models_says_what_to_do(tmp_path: Path) -> None:
    assert "has no model in it" in only_message(tmp_path)
    touch(tmp_path, "sub/a.gguf", "mmproj.gguf")
    assert "subfolders are not searched" in only_message(tmp_path)
    write(tmp_path / "models.yaml", "models: {a: a.gguf}")
    assert f"give {tmp_path / 'models.yaml'}" in only_message(tmp_path)


def test_implicit_models_are_looked_up_like_others(tmp_path: Path) -> None:
    touch(tmp_path, "a.gguf")

    def locate(reference: Reference, base_dir: Path) -> Path | None:
        raise SourceError(f"{reference} cannot be read", is_permanent=True)

    (problem,) = check(tmp_path / "a.gguf", locate)
    assert problem.where == "models.a.model"
    assert problem.message == f"{tmp_path / 'a.gguf'} cannot be read"


def test_problems_of_many_models_are_not_compared_each_with_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, equal = [], Problem.__eq__

    def counting(self: Problem, other: object) -> bool:
        compared.append(None)
        return bool(equal(self, other))

    def locate(reference: Reference, base_dir: Path) -> Path | None:
        raise SourceError(f"{reference} is not there", is_permanent=True)

    monkeypatch.setattr(Problem, "__eq__", counting)
    names = [f"m{number}" for number in range(200)]
    path = write(tmp_path / "models.yaml", "models:\n" + "".join(f"  {name}: {name}.gguf\n" for name in names))
    assert [problem.where for problem in check(path, locate)] == [f"models.{name}" for name in names]
    assert len(compared) < 1000
