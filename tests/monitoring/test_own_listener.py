"""`metrics.port`: monitoring on a listener of its own, so that clients do not reach it."""

from __future__ import annotations

from collections.abc import Callable
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.net import free_port
from tests.support.tokenweir import Tokenweir

pytestmark = [pytest.mark.process, pytest.mark.thorough]


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except HTTPError as refused:
        refused.close()
        return refused.code


@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="fleet")])
def test_metrics_are_on_their_own_port_alone(tokenweir: Callable[..., Tokenweir], options: tuple[str, ...]) -> None:
    port = free_port()
    running = tokenweir(metrics={"port": port}, options=options)
    monitor = f"http://127.0.0.1:{port}"
    assert [status(f"{running.url}{path}") for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 404]
    assert [status(f"{monitor}{path}") for path in ("/healthz", "/readyz", "/v1/models")] == [200, 200, 404]
    with urlopen(f"{monitor}/metrics", timeout=5) as answer:
        series = answer.read().decode()
    assert "tokenweir_in_flight" in series or "tokenweir_exchanges" in series
    assert not options or "tokenweir_processes 2.0" in series
