"""The engine that builds and runs containers, for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.deploy.containers import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine()
