"""The client, the gateway and the provider of one test."""

from __future__ import annotations

from tests.gateway.websocket.sockets import on
from tests.support.turns import each_step_is_a_turn

__all__ = ["each_step_is_a_turn", "on"]
