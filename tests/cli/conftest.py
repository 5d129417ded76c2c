"""Commands run in the process of the tests, by the hundred."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from proxy import cli


@pytest.fixture(autouse=True, scope="session")
def _one_parser() -> Iterator[None]:
    """To make it takes longer than most commands do, and it is the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_parser", cache(cli._parser))
        yield
