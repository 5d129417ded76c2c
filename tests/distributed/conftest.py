"""Deployments on real servers: proxies, workers, a Valkey and a Postgres, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.delivery import shipper
from tests.distributed.apart import Apart, ledger_url, queue_url
from tests.support.provider import ScriptedProvider

__all__ = ["ledger_url", "queue_url"]


@pytest.fixture
def apart(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str, request: pytest.FixtureRequest
) -> Iterator[Apart]:
    """A deployment of several processes; nothing runs yet but its servers. The parameter: its options."""
    made = Apart(tmp_path, provider, ledger_url, queue_url, **getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is overdue is looked for sooner, and so more often."""
    monkeypatch.setattr(shipper, "OVERDUE_S", 2.0)
