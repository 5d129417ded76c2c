"""Deployments whose keys may not do everything: one for the whole session on one machine, and those of single tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.budgets.deployed.limited import Limited, deployment
from tests.distributed.apart import ledger_url, queue_url
from tests.support.provider import ScriptedProvider

__all__ = ["ledger_url", "queue_url"]


@pytest.fixture(scope="session")
def limited_process(tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider) -> Iterator[Limited]:
    tokenweir = deployment(
        tmp_path_factory.mktemp("limited"),
        provider_process,
        idempotency={"replay_bytes_max": "64 KiB"},
        budget_headers=True,
    )
    with closing(tokenweir):
        yield Limited(tokenweir.start(), provider_process)
        assert "Traceback" not in tokenweir.log.read_text(), tokenweir.log.read_text()[-3000:]


@pytest.fixture
def limited(limited_process: Limited, provider: ScriptedProvider) -> Limited:
    """The shared deployment, its provider with no plans and an empty log."""
    assert provider is limited_process.provider
    return limited_process


@pytest.fixture
def alone(tmp_path: Path, provider: ScriptedProvider) -> Iterator[Limited]:
    """One of its own, to be killed; started."""
    with closing(deployment(tmp_path, provider)) as tokenweir:
        yield Limited(tokenweir.start(), provider)
