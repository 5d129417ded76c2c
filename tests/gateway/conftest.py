"""The deployment that the gateway's tests share."""

from tests.gateway.deployment import deployment, deployment_process

__all__ = ["deployment", "deployment_process"]
