"""Dimensions in queries and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from proxy.billing.dimensions import END_USER, RUN, SESSION, Dimensions, tag
from proxy.console.api.reading import invalid
from proxy.reports.dimensions import ShownDimension


class DimensionValue(msgspec.Struct, frozen=True):
    """A value of a dimension, and its value id."""

    value: str | None
    """the text that the client sent; null: erased, or an overflow"""
    value_id: str


def wanted_values(
    end_users: Iterable[str], sessions: Iterable[str], runs: Iterable[str], tags: Iterable[str], param: str
) -> dict[str, list[str]]:
    """The values of a filter by dimension. `tags`: each as `team=red`; `param`: the name of their parameter. Raises
    ApiError."""
    wanted: dict[str, list[str]] = {}
    for name, values in ((END_USER, end_users), (SESSION, sessions), (RUN, runs)):
        if listed := list(values):
            wanted[name] = listed
    for text in tags:
        name, equals, value = text.partition("=")
        dimension = tag(name)
        if dimension is None or not equals:
            raise invalid(f"'{param}': must be the name and the value of a tag, as team=red.", param)
        wanted.setdefault(dimension, []).append(value)
    return wanted


def dimensions_shown(dimensions: Dimensions, shown: Mapping[str, ShownDimension]) -> dict[str, DimensionValue]:
    """The dimensions of an exchange. `shown`: by value id."""
    return {name: value_shown(shown[value_id]) for name, value_id in sorted(dimensions.items())}


def value_shown(shown: ShownDimension) -> DimensionValue:
    """One value."""
    return DimensionValue(shown.value, shown.value_id)
