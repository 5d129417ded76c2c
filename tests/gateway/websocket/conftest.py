"""The client, the gateway and the provider of one test."""

from tests.gateway.websocket.sockets import on

__all__ = ["on"]
