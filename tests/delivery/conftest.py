"""A journal and its folder, and a way to the shared server of Redis that can be hurt."""

from collections.abc import Iterator

import pytest

from tests.journal.journals import folder, journal
from tests.support.faulty import FaultyPath
from tests.support.valkey import Valkey

__all__ = ["folder", "journal"]


@pytest.fixture
def path(shared_valkey: Valkey) -> Iterator[FaultyPath]:
    with FaultyPath("127.0.0.1", shared_valkey.port) as path:
        yield path


@pytest.fixture
def hurt_url(path: FaultyPath) -> str:
    """The server, by that way."""
    return f"redis://127.0.0.1:{path.port}"
