"""The details of an entry: named once, stored as before, read from any version."""

from __future__ import annotations

import msgspec
import pytest

from proxy.billing.details import DETAIL_NAMES, EntryDetails, detail_name


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
