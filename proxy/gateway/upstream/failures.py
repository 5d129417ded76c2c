"""The failures of a request to a provider. Their messages are for the client.

Invariant: no message has an address or a secret.
"""

from __future__ import annotations

from math import ceil

from proxy.http import errors
from proxy.http.errors import ApiError


class UpstreamFailedError(Exception):
    """The provider was unreachable or disconnected. The message contains no address and no secret."""

    def refusal(self) -> ApiError:
        """The error response to the client."""
        return errors.upstream_failed()


class NotSentError(UpstreamFailedError):
    """No byte of the request reached the provider, so it cannot have served it."""


class NoCredentialError(NotSentError):
    """Each of the provider's credentials is paused or at a limit."""

    def __init__(self, retry_after_s: float, *, rejected: bool) -> None:
        """`rejected`: the provider rejected all of them."""
        super().__init__("no credential: all rejected" if rejected else "no credential: all at their limits")
        self._retry_after_s = retry_after_s
        self._rejected = rejected

    def refusal(self) -> ApiError:
        if self._rejected:
            return errors.upstream_auth()
        return errors.upstream_limited(retry_after_s=max(1, ceil(self._retry_after_s)))


class OutOfConnectionsError(NotSentError):
    """This machine can make no connection: it has no descriptors, ports or memory left. No provider is at fault."""

    def refusal(self) -> ApiError:
        return errors.out_of_connections()
