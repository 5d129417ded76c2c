"""The client, the gateway and the provider of one test."""

from __future__ import annotations

import pytest

from proxy.http import websocket
from tests.gateway.websocket.sockets import on
from tests.support.turns import each_step_is_a_turn

__all__ = ["each_step_is_a_turn", "on"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients wait for the end of the connection after both close frames."""
    monkeypatch.setattr(websocket, "CLOSE_S", 0.2)
