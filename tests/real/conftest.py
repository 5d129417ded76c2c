"""What drives the proxy here: the deployment of the gateway's tests."""

from tests.gateway.deployment import deployment, deployment_process

__all__ = ["deployment", "deployment_process"]
