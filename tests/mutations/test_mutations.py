"""The kept list of deliberate faults fits the source; `make mutate` sees whether tests notice each of them."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutations.kept import ROOT, DoesNotApply, Mutation, kept_mutations

MUTATIONS = kept_mutations()


def text_of(mutation: Mutation) -> str:
    return (ROOT / mutation.file).read_text(encoding="utf-8")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_mutation_has_its_place_in_the_source_and_changes_what_the_code_does(mutation: Mutation) -> None:
    before = text_of(mutation)
    after = mutation.applied_to(before)
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after)), "it changes nothing"


def test_every_mutation_has_a_name_of_its_own_and_a_reason() -> None:
    assert [name for name, times in Counter(mutation.name for mutation in MUTATIONS).items() if times > 1] == []
    assert all(mutation.why.endswith(".") for mutation in MUTATIONS)


def test_every_module_that_decides_for_the_fleet_has_mutations() -> None:
    assert len(MUTATIONS) >= 40
    names = (
        "placement",
        "pump",
        "fleet_ledger",
        "fleet",
        "resident",
        "prefix_memory",
        "waiting",
        "fair_share",
        "lifecycle",
        "threads",
    )
    of_fleet = {mutation.file for mutation in MUTATIONS if not mutation.is_of_cells}
    assert of_fleet == {f"router/{name}.py" for name in names}


def test_a_mutation_whose_text_is_gone_or_there_twice_is_named() -> None:
    mutation = Mutation("m", "router/x.py", "a == b", "a != b", "Why.")
    assert mutation.applied_to("if a == b:") == "if a != b:"
    for text in ("if a is b:", "if a == b or a == b:"):
        with pytest.raises(DoesNotApply, match=r"m: its `old` is in router/x\.py"):
            mutation.applied_to(text)
