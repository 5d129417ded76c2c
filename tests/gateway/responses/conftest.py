"""A provider of responses, a proxy before it, and clients."""

from tests.gateway.responses.stage import on

__all__ = ["on"]
