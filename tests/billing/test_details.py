"""The details of an entry: named once, stored as before, read from any version."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

from proxy.billing.details import DETAIL_NAMES, EntryDetails, detail_name

PROXY = Path(__file__).parents[2] / "proxy"


def test_a_detail_without_a_value_is_not_stored_and_a_zero_is() -> None:
    details = EntryDetails(polls=0, capped=False, custom_id=None, failed=None, units={})
    assert details.stored() == {"polls": 0, "capped": False, "custom_id": None, "units": {}}
    assert EntryDetails().stored() == {}


def test_what_is_stored_is_read_again_in_the_declared_order() -> None:
    full = EntryDetails.of(dict.fromkeys(DETAIL_NAMES, "x"))
    assert tuple(full.stored()) == DETAIL_NAMES
    assert EntryDetails.of(msgspec.json.decode(msgspec.json.encode(full.stored()))) == full


@pytest.mark.parametrize("stored", [None, [], "x", {"later": 1}, {}])
def test_details_of_any_version_are_read(stored: object) -> None:
    assert EntryDetails.of(stored) == EntryDetails()


def test_a_detail_has_its_name_in_a_query() -> None:
    assert detail_name(EntryDetails.units) == "units"
    assert detail_name(EntryDetails.reserved_usd) == "held_usd"


def test_no_other_module_names_a_detail_of_an_entry() -> None:
    """As `details["x"]`, `entry.details.get("x")`, or `"x" in details`."""
    named = [
        f"{path.relative_to(PROXY)}:{node.lineno} {word}"
        for path in PROXY.rglob("*.py")
        if re.search(r"\bdetails\b", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        for word in _names_of_details(node)
    ]
    assert named == []


def _names_of_details(node: ast.AST) -> list[str]:
    match node:
        case ast.Subscript(value=holder, slice=ast.Constant(value=str(word))):
            pass
        case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[ast.Constant(value=str(word)), *_]):
            pass
        case ast.Compare(left=ast.Constant(value=str(word)), ops=[ast.In() | ast.NotIn()], comparators=[holder]):
            pass
        case _:
            return []
    name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
    return [word] if name == "details" and word in DETAIL_NAMES else []
