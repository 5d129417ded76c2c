"""Entries with dimensions, and the values that these have."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace
from sqlalchemy import Engine

from proxy.billing.details import EntryDetails
from proxy.billing.dimensions import Dimensions
from proxy.billing.entries import LedgerEntry
from proxy.billing.keys import DEFAULT_PROJECT
from proxy.ledger.dimensions.values import DimensionValue, DimensionValues


def ids_of(engine: Engine, project_id: str = DEFAULT_PROJECT, /, **values: str) -> Dimensions:
    """Dimension → the id of its value, which is created. A tag is named `tag_team`."""
    wanted = {
        name.replace("tag_", "tag:"): DimensionValue(project_id, name.replace("tag_", "tag:"), value)
        for name, value in values.items()
    }
    found = DimensionValues(engine).ids(wanted.values(), lambda _: True)
    return {name: found[value] for name, value in wanted.items()}


def with_dimensions(entry: LedgerEntry, dimensions: Mapping[str, str]) -> LedgerEntry:
    """The terminal entry of an exchange that has them."""
    return replace(entry, details={**entry.details, **EntryDetails(dimensions=dimensions).stored()})
