"""What the documents claim is what the code does: routes, settings, keys, fields, errors, modules, states, links."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import router.errors
import router.relay  # has errors of its own
import worker.chat.errors
import worker.errors
from router.body import OwnedKeys
from router.catalog_docs import marked_tables, tables, with_tables
from router.catalog_inner_keys import ROUTER_OWNED
from router.catalog_parser import read_catalog
from router.cli.catalog_file import FILE_VARIABLE
from router.cli.check import check
from router.cli.serve import serve
from router.fleet import FleetSnapshot
from router.lifecycle import TRANSITIONS as WORKER_TRANSITIONS
from router.metrics import RouterMetrics
from router.settings import ENV_PREFIX, RouterSettings
from tests.test_architecture import ROOT, modules
from worker.api.format_fields import FormatFields
from worker.api.openai_chat import ChatFields
from worker.api.openai_completions import CompletionFields
from worker.api.openai_embeddings import EmbeddingFields
from worker.api.openai_fields import GenerationFields
from worker.api.refusals import Table
from worker.api.refused_everywhere import BOTH, BUDGETS, EVERYWHERE, FORMATS, MAXIMUM, OF_OLLAMA, SAMPLING, STOP
from worker.api.refused_openai import CHAT, COMPLETIONS, EMBEDDINGS, RERANK
from worker.api.refused_responses import RESPONSES
from worker.api.rerank import RerankFields
from worker.api.responses_fields import ResponsesFields
from worker.api.sampling_fields import MAX_BIASES, MAX_STOP_CHARS, MAX_STOP_STRINGS, SamplingFields
from worker.api.thought_fields import ThoughtFields
from worker.engine.request import SamplingParams
from worker.engine.slot import TRANSITIONS as SLOT_TRANSITIONS

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md")])


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(document: str, heading: str) -> str:
    """Return what stands between a heading and the next one of its level or above."""
    level = re.match("#+", heading)
    assert level is not None
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level[0])}}} |\Z)", document, re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"there is no heading {heading!r}"
    return found[1]


def rows(part: str) -> list[list[str]]:
    """Return the cells of all tables in `part`, without their heads."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for table in re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)
        for line in table.splitlines()[2:]
    ]


def quoted(cell: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`]*)`", cell)


def name_in(cell: str) -> str:
    (name,) = quoted(cell)
    return name


# --- README -----------------------------------------------------------------------------------------------


def test_readme_lists_every_setting_with_its_default() -> None:
    listed = {name_in(row[0]): row[1] for row in rows(section(text_of("README.md"), "## Settings"))}
    fields = {f"{ENV_PREFIX}{name.upper()}": field for name, field in RouterSettings.model_fields.items()}
    assert listed.keys() == {FILE_VARIABLE, *fields}
    for variable, field in fields.items():
        told = listed[variable].strip("`")
        if variable == "CORRAL_CACHE":
            assert told == "~/.cache/corral"
        elif field.default in (None, ()):
            assert told == "", f"{variable} has no default"
        else:
            shown = str(field.default).lower() if isinstance(field.default, bool) else f"{field.default}"
            assert told == shown.removesuffix(".0"), variable


def test_readme_names_every_option_of_the_command_line() -> None:
    options = {name for parameter in (*serve.params, *check.params) for name in parameter.opts if name.startswith("--")}
    told = set(re.findall(r"`(--[\w-]+)`", section(text_of("README.md"), "## Your own models, your own environment")))
    assert told == options


def test_readme_lists_the_shipped_models_with_their_aliases() -> None:
    shipped = yaml.safe_load(text_of("models.yaml"))["models"]
    listed = {quoted(row[0])[0]: row for row in rows(section(text_of("README.md"), "## Quick start"))}
    assert {name: quoted(row[1]) for name, row in listed.items()} == {
        name: options["aliases"] for name, options in shipped.items()
    }
    comments = {name: text_of("models.yaml").split(f"\n  {name}:")[0].rpartition("\n\n")[2] for name in shipped}
    for name, row in listed.items():
        size = re.match(r"\d+ MB", row[2])
        assert size is not None
        assert size[0] in comments[name], "models.yaml and README tell one size"
        assert row[3].strip("[").split("]")[0] in comments[name], "models.yaml and README tell one licence"


def test_readme_sets_everything_up_with_two_commands() -> None:
    quick_start = section(text_of("README.md"), "## Quick start")
    (commands,) = re.findall(r"```sh\n(.*?)```", quick_start, re.DOTALL)
    assert commands.split("\n") == ["make serve", "make test", ""]


def test_documents_name_only_targets_that_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`[^`\n]*\bmake ([a-z-]+)`", document.read_text(encoding="utf-8")))
        assert named <= targets, document.name


def test_readme_names_only_metrics_that_exist() -> None:
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: FleetSnapshot({}, is_shutting_down=False))
    families = {family.name for family in metrics.families()}
    named = set(re.findall(r"`(corral_\w+)", text_of("README.md")))
    assert named
    assert {name.removesuffix("_total") for name in named} <= families


def test_changelog_has_the_version_that_is_built() -> None:
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert f"\n## [{version}]" in text_of("CHANGELOG.md")


# --- models.yaml ------------------------------------------------------------------------------------------


def test_tables_of_keys_are_those_of_the_program() -> None:
    document = text_of("docs/models-yaml.md")
    assert document == with_tables(document), "run: python -m router.catalog_docs docs/models-yaml.md"


def test_every_table_of_keys_has_its_place_once() -> None:
    assert sorted(marked_tables(text_of("docs/models-yaml.md"))) == sorted(tables())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_catalogue_in_a_document_is_a_good_one(document: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    for example in examples:
        assert read_catalog(example, ROOT / "models.yaml").problems == ()


def test_example_of_request_rules_does_what_the_text_below_it_says() -> None:
    part = section(text_of("docs/models-yaml.md"), "## Request rules")
    (example,) = re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)
    rules = read_catalog(example, ROOT / "models.yaml").catalog.resolve("writer-precise").rules
    assert rules.apply({}) == {"temperature": 0, "max_tokens": 512, "top_p": 0.9}
    said = {"temperature": 1, "top_p": 0.5, "response_format": {}}
    assert rules.apply(said) == {"temperature": 1, "max_tokens": 512, "top_p": 0.9}
    assert set(quoted(part.rpartition("Rules cannot touch")[2].partition(", because")[0])) == set(ROUTER_OWNED)


def test_example_of_problems_in_the_readme_is_what_check_prints() -> None:
    told = re.findall(r"^models\.yaml:.*$", text_of("README.md"), re.MULTILINE)
    text = "models:\n  a:\n    model: a.gguf\n    slotz: 2\n    ctx_size: 4096\n"
    problems = read_catalog(text, ROOT / "models.yaml").problems
    assert told == [problem.describe(Path("models.yaml")) for problem in problems]


# --- requests ---------------------------------------------------------------------------------------------

REQUESTS = text_of("docs/requests.md")


def test_requests_lists_the_fields_that_the_router_reads() -> None:
    listed = {name_in(row[0]): row for row in rows(section(REQUESTS, "## Fields that the router reads"))}
    assert listed.keys() == set(ROUTER_OWNED)
    assert listed.keys() == {name.removesuffix("_s") for name in OwnedKeys.__dataclass_fields__}


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("## Fields of both generation routes", GenerationFields.model_fields),
        ("## The form of the answer", FormatFields.model_fields),
        ("## Thoughts", ThoughtFields.model_fields),
        ("## Only chat", ChatFields.model_fields),
        ("## Only completions", CompletionFields.model_fields),
        ("## Embeddings", EmbeddingFields.model_fields),
        ("## Reranking", RerankFields.model_fields),
    ],
)
def test_requests_lists_every_field_that_is_honoured_and_what_it_must_be(
    heading: str, fields: Mapping[str, Any]
) -> None:
    listed = {name_in(row[0]): row[1] for row in rows(section(REQUESTS, heading))}
    of_several = (GenerationFields, FormatFields, ThoughtFields)
    shared = {name for cls in of_several if fields is not cls.model_fields for name in cls.model_fields}
    assert listed.keys() == fields.keys() - shared
    for name, told in listed.items():
        assert told == (fields[name].description or told), name


def test_requests_tells_the_defaults_of_sampling() -> None:
    defaults = {name_in(row[0]): row[2] for row in rows(section(REQUESTS, "## Fields of both generation routes"))}
    params = SamplingParams()
    told = {name: value for name, value in defaults.items() if hasattr(params, name) and name != "seed" and value}
    assert told == {name: str(getattr(params, name)) for name in told}
    assert {"temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"} <= told.keys()
    assert f"up to {MAX_STOP_STRINGS} texts of up to {MAX_STOP_CHARS} characters" in REQUESTS
    assert f"At most {MAX_BIASES} entries" in REQUESTS


VALUES = (
    *(None, False, True, -1, 0, 1, 2, 0.5, "", "x", "none", "auto", "default", "medium", "required"),
    *("float", "NONE", [], ["text"], ["float"], ["audio"], {}, {"type": "text"}, {"type": "json_object"}),
)
"""What clients send in fields that may be harmless."""

OTHER_NAMES = (*MAXIMUM, *STOP, *SAMPLING)
"""What other dialects call fields that all have: listed once for all routes."""


def own_of(table: Table) -> Table:
    """Return what a route refuses beside what all refuse."""
    return {
        name: one
        for name, one in table.items()
        if name not in OTHER_NAMES and not any(name in all_ and all_[name].passes is one.passes for all_ in ALL_REFUSE)
    }


ALL_REFUSE = (BOTH, OF_OLLAMA)


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        (0, {**EVERYWHERE, **OF_OLLAMA}),
        (1, own_of(CHAT)),
        (2, own_of(COMPLETIONS)),
        (3, EMBEDDINGS),
        (4, RERANK),
        (5, {**FORMATS, **BUDGETS}),
    ],
)
def test_requests_lists_every_field_that_is_refused_and_the_values_that_pass(table: int, fields: Table) -> None:
    part = section(REQUESTS, "## Refused unless harmless")
    listed = {name_in(row[0]): quoted(row[1]) for row in rows(re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)[table])}
    assert listed.keys() == fields.keys()
    for name, told in listed.items():
        passing = [json.dumps(value) for value in VALUES if value is not None and fields[name].passes(value)]
        assert sorted(passing) == sorted(told), name


def test_requests_lists_the_names_that_other_dialects_have_for_the_same() -> None:
    listed = {name_in(row[0]): set(quoted(row[1])) for row in rows(section(REQUESTS, "### Other names"))}
    expected = {"max_tokens": set(MAXIMUM) - {"max_tokens"}, "stop": set(STOP) - {"stop"}}
    for other, (ours, _) in SAMPLING.items():
        expected.setdefault(ours, set()).add(other)
    assert listed == expected


RESPONSES_PAGE = text_of("docs/responses.md")


def test_the_page_of_responses_names_every_field_of_their_own() -> None:
    told = {name.partition(".")[0] for name in quoted(section(RESPONSES_PAGE, "## Fields"))}
    assert ResponsesFields.model_fields.keys() - SamplingFields.model_fields.keys() <= told


def test_the_page_of_responses_lists_every_field_that_is_refused_and_the_values_that_pass() -> None:
    fields = own_of(RESPONSES)
    listed = {name_in(row[0]): quoted(row[1]) for row in rows(section(RESPONSES_PAGE, "## Refused unless harmless"))}
    assert listed.keys() == fields.keys()
    for name, told in listed.items():
        sent = (*VALUES, "disabled", "in_memory", "in-memory")
        passing = [json.dumps(value) for value in sent if value is not None and fields[name].passes(value)]
        assert sorted(passing) == sorted(told), name


def error_classes(root: type[Exception]) -> Iterator[type[Exception]]:
    for found in root.__subclasses__():
        yield found
        yield from error_classes(found)


def test_requests_lists_every_error_with_its_status() -> None:
    listed = {(int(row[0]), name_in(row[1])) for row in rows(section(REQUESTS, "## Errors"))}
    codes: set[tuple[int, str]] = {(429, "too_many_bytes"), (400, "previous_response_not_found")}
    codes |= {(400, "invalid_conversation_id"), (410, "stream_stopped"), (410, "stream_abandoned")}
    codes |= {(429, "too_many_streams"), (429, "too_many_readers")}
    for found in error_classes(router.errors.RouterError):
        codes.add((found.http_status, found.code))  # type: ignore[attr-defined]
    for found in error_classes(worker.errors.RequestError):
        codes.add((found.status, found.code))  # type: ignore[attr-defined]
    never_sent = {code for code in codes if code[1] == "invalid_catalog"}
    assert listed == codes - never_sent


# --- the map of the code ----------------------------------------------------------------------------------

ARCHITECTURE = text_of("ARCHITECTURE.md")


def test_every_module_is_on_the_map_once_and_every_name_there_is_a_module() -> None:
    named = re.findall(r"^- `((?:router|worker)/[\w/]+\.py)` \d: ", ARCHITECTURE, re.MULTILINE)
    exist = [str(module.path.relative_to(ROOT)) for module in modules().values() if module.path.name != "__init__.py"]
    assert sorted(named) == sorted(exist)


def test_every_module_is_on_the_map_in_its_layer() -> None:
    told = dict(re.findall(r"^- `([\w/]+\.py)` (\d): ", ARCHITECTURE, re.MULTILINE))
    layers = {str(module.path.relative_to(ROOT)): module.layer for module in modules().values()}
    assert {path: int(layer) for path, layer in told.items()} == {path: layers[path] for path in told}


@pytest.mark.parametrize(
    ("heading", "transitions"), [("### Workers", WORKER_TRANSITIONS), ("### Slots", SLOT_TRANSITIONS)]
)
def test_tables_of_states_are_those_of_the_code(heading: str, transitions: Mapping[Any, frozenset[Any]]) -> None:
    part = section(ARCHITECTURE, heading)
    told = {name_in(row[0]): set(quoted(row[1])) for row in rows(part)}
    assert told == {state.name: {other.name for other in others} for state, others in transitions.items()}
    drawing = part.partition("```\n")[2].partition("```")[0]
    assert all(state.name in drawing for state in transitions), "every state is in the drawing"


# --- links ------------------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    """Return the anchors of all headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target
