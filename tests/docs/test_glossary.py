"""The check that refuses synonyms of the glossary's words."""

from __future__ import annotations

import pytest

from tests.support.glossary import GLOSSARY, found, synonyms

REFUSED = frozenset({"gate", "board"})


def test_synonyms_are_those_in_code_in_the_last_column() -> None:
    table = (
        "| word | meaning | not |\n|---|---|---|\n| *limit counter* | of `scope` | `gate`, room |\n| *lease* | | |\n"
    )
    assert synonyms(table) == {"gate"}
    assert synonyms(GLOSSARY.read_text("utf-8")) >= REFUSED


@pytest.mark.parametrize(
    "source",
    [
        "class LeaseBoard: ...", "def open_gate(): ...", "def f(gate_id): ...", "def f(*, gate=1): ...", "GATE = 1",
        "self._gate = 1", "for gate in x: ...", 'def f():\n    """The gate of a key."""', 'x: int\n"""Gate"""',
    ],
)  # fmt: skip
def test_a_synonym_is_found(source: str) -> None:
    assert [word for _, word, _ in found(source, REFUSED)] in (["gate"], ["board"])


@pytest.mark.parametrize(
    "source",
    ["class Gateway: ...", "aggregate = 1", "print(gate)", "x = 'the gate'", "def f():\n    '''The gateway.'''"],
)
def test_other_words_and_uses_are_not(source: str) -> None:
    assert list(found(source, REFUSED)) == []
