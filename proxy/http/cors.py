"""Cross-origin requests (CORS): lets browser applications of configured origins use the API.

Invariants: a preflight request carries no key, and needs none. Credentials of the browser (cookies)
are never allowed: a client authenticates with its key in a header. Browsers let any page open a WebSocket, and send the
page's origin: any but a configured origin is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from aiohttp import web

from proxy.http import errors
from proxy.http.headers import is_token

ANY = "*"
# Chrome repeats a preflight request after two hours at the latest, whatever the header says.
MAX_AGE_S = 7200

_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}(?: ?, ?[A-Za-z0-9_-]{1,64}){0,63}", re.ASCII)

Headers = tuple[tuple[str, str], ...]


class Cors:
    """The headers of responses, and the responses to preflight requests."""

    def __init__(self, origins: Collection[str]) -> None:
        """`origins`: at least one, as browsers send them, in lower case; or ANY."""
        self._origins = frozenset(origins)
        self._any = ANY in self._origins

    def allows(self, request: web.BaseRequest) -> bool:
        """True if the page that sends the request may read the response."""
        return self._any or is_token(request.headers.get("Origin", ""), *self._origins)

    def headers(self, request: web.BaseRequest) -> Headers:
        """The headers of the response to `request`."""
        if "Origin" not in request.headers:
            return ()
        vary = () if self._any else (("Vary", "Origin"),)
        if not self.allows(request):
            return vary
        # Without credentials, the wildcard exposes every header.
        origin = ANY if self._any else request.headers["Origin"]
        return (("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", ANY), *vary)

    @staticmethod
    def check_socket(cors: Cors | None, request: web.BaseRequest) -> None:
        """Raises ApiError 403 if a page opens a WebSocket, unless its origin is configured."""
        if "Origin" in request.headers and (cors is None or not cors.allows(request)):
            raise errors.origin_not_allowed()

    def is_preflight(self, request: web.BaseRequest) -> bool:
        """True if `request` is a preflight request of a browser."""
        headers = request.headers
        return request.method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers

    def preflight(self, request: web.BaseRequest, methods: Collection[str]) -> web.Response:
        """The preflight response of a path with `methods`. Raises ApiError 403 if the page's origin is not
        configured."""
        if not self.allows(request):
            raise errors.origin_not_allowed()
        headers = {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Max-Age": str(MAX_AGE_S),
        }
        names = request.headers.get("Access-Control-Request-Headers", "")
        if _NAMES.fullmatch(names):  # a wildcard would not include Authorization
            headers["Access-Control-Allow-Headers"] = names
        return web.Response(status=204, headers=headers)
