"""Counts of usage objects: totals."""

from __future__ import annotations

import pytest

from proxy.metering.counts import with_total
from proxy.metering.usage import Usage


@pytest.mark.parametrize(("usage", "total"), [(Usage(1, None, 2), 3), (Usage(1), None), (Usage(total_tokens=5), None)])
def test_a_total_is_that_of_both_sides(usage: Usage, total: int | None) -> None:
    assert with_total(usage).total_tokens == total
