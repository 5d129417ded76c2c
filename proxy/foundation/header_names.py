"""Names of HTTP headers that an operator lets pass between clients and a provider.

Invariant: whatever the patterns say, no header passes that frames a message, concerns one connection only, holds
credentials or cookies, or is set by the proxy itself.
"""

from __future__ import annotations

from collections.abc import Collection

NEVER_PASSED = frozenset((
    "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "accept", "accept-encoding",
    "connection", "keep-alive", "te", "trailer", "upgrade", "expect", "date", "server", "location",
    "authorization", "proxy-authorization", "proxy-authenticate", "www-authenticate", "proxy-connection",
    "x-api-key", "x-goog-api-key", "api-key", "cookie", "set-cookie", "idempotency-key", "x-tokenweir-exchange",
    "traceparent", "tracestate", "cache-control", "vary", "x-accel-buffering",
))  # fmt: skip
_NEVER_PREFIXES = ("access-control-", "sec-websocket-", "x-tokenweir-")


def may_pass(name: str) -> bool:
    """True if the header may pass. `name`: in lower case."""
    return name not in NEVER_PASSED and not name.startswith(_NEVER_PREFIXES)


class HeaderNames:
    """Header names, and patterns that end in `*`; all in lower case."""

    __slots__ = ("_names", "_prefixes")

    def __init__(self, patterns: Collection[str] = ()) -> None:
        self._names = frozenset(one for one in patterns if not one.endswith("*"))
        self._prefixes = tuple(one[:-1] for one in patterns if one.endswith("*"))

    def __bool__(self) -> bool:
        return bool(self._names or self._prefixes)

    def __contains__(self, name: str) -> bool:
        """True if the header may pass. `name`: in lower case."""
        return (name in self._names or name.startswith(self._prefixes)) and may_pass(name)
