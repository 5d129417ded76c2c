"""The certificates that this machine trusts, read once: reading them takes some 50 ms of CPU time."""

from __future__ import annotations

import ssl
from functools import cache

from proxy.foundation.tls import client_context


@cache
def system_tls() -> ssl.SSLContext:
    """The context that an `UpstreamClient` makes for itself if it is given none."""
    return client_context()
