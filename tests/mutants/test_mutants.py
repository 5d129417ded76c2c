"""The tests of the gate find faults: fifty small ones in meter, billing, ledger and exchange, each by itself."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.mutate import mutants
from tests.mutants.run import AREAS, EQUIVALENT, ROOT, mutants_of, results


def test_a_mutant_is_the_module_with_one_line_changed() -> None:
    original = (ROOT / "proxy/billing/money.py").read_text("utf-8").splitlines()
    made = list(mutants(ROOT, "proxy/billing/money.py"))
    assert len(made) > 10
    for mutant in made:
        ast.parse(mutant.source)
        differs = [
            at
            for at, lines in enumerate(zip(original, mutant.source.splitlines(), strict=True), 1)
            if len({*lines}) > 1
        ]
        assert differs == [mutant.line]


@pytest.mark.slow
def test_there_are_fifty_mutants_and_each_is_a_module() -> None:
    mutants = [mutant for area in AREAS for mutant in mutants_of(area)]
    assert len({mutant.name for mutant in mutants}) == 50
    for mutant in mutants:
        ast.parse(mutant.source)


@pytest.mark.slow
def test_each_listed_mutant_still_exists() -> None:
    """A listed mutant that code has outlived would hide nothing, and mean nothing."""
    assert set(EQUIVALENT) <= {mutant.name for area in AREAS for mutant in mutants_of(area, listed=True)}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_gate_finds_each_mutant() -> None:
    assert [mutant.name for mutant, found in results() if found is None] == []
