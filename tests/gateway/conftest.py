"""The deployments that the gateway's tests share."""

from tests.gateway.deployment import deployment, deployment_process
from tests.gateway.sockets import on

__all__ = ["deployment", "deployment_process", "on"]
