"""What goes up to a provider, and the answer's head that comes back.

Law: the target is made of the dialect's path, the route's model and the query names that the dialect lists; nothing
of a client's path goes up.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from aiohttp import web

from proxy.gateway.headers import upward
from proxy.gateway.ports import Route
from proxy.gateway.request_body import WRITINGS
from proxy.gateway.upstream import Answer, UpstreamClient
from proxy.metering.dialect import NAME, Dialect
from proxy.metering.request import RequestFacts

# An error answer is read whole before it is passed on; a longer one is replaced by our own.
ERROR_BYTES_MAX = 256 * 1024
# How servers refuse a field that they do not know; those that validate against a schema say 422.
_UNKNOWN_FIELD = (400, 422)

_VALUE = re.compile(r"[A-Za-z0-9_.~%+-]{0,200}", re.ASCII)


class Asking:
    """One request to one provider: sent once, or once more without what that provider does not take."""

    def __init__(
        self, request: web.BaseRequest, dialect: Dialect, facts: RequestFacts, document: dict[str, Any], route: Route
    ) -> None:
        self._request = request
        self._dialect = dialect
        self._document = document
        self._route = route
        self.injected = (
            dialect.stripper is not None
            and facts.streamed
            and not facts.usage_asked
            and route.provider.injects(route.upstream_model)
        )
        """usage is asked for in the client's stead, and to be taken out of the answer"""
        self.refusal: bytes | None = None
        """the body of such a refusal, if it was read here already"""

    def wire(self) -> bytes:
        """The request's bytes."""
        model = self._route.upstream_model
        document = self._dialect.upstream_document(self._document, upstream_model=model, inject_usage=self.injected)
        content_type, body = WRITINGS[self._dialect.request_body].write(document)
        more = f"Content-Type: {content_type}\r\n{upward(self._request.headers, self._dialect.headers_up)}"
        path = target(self._dialect, model, self._request.raw_path)
        return self._route.provider.request(self._dialect, path, body, more)

    async def answer(self, upstream: UpstreamClient, wire: bytes) -> Answer:
        """Send `wire`; take back the question for usage where the provider refuses it. Raises UpstreamFailedError."""
        provider = self._route.provider
        answer = await upstream.ask(provider, wire)
        if answer.status in _UNKNOWN_FIELD and self.injected and provider.settings.inject_usage == "auto":
            self.refusal = await answer.read(ERROR_BYTES_MAX)
            answer.close()
            if self.refusal is not None and b"stream_options" in self.refusal:
                provider.without_usage.add(self._route.upstream_model)
                self.injected = False
                self.refusal = None
                answer = await upstream.ask(provider, self.wire())
        return answer


def target(dialect: Dialect, upstream_model: str, raw_path: str) -> str:
    """The path that is appended to a provider's base URL, with its query."""
    path = dialect.upstream_path
    if NAME in path:
        path = path.replace(NAME, quote(upstream_model, safe="/:@+"))
    if dialect.query and "?" in raw_path:
        parts = raw_path.partition("?")[2].partition("#")[0].split("&")
        passed = [part for part in parts if _passes(part, dialect.query)]
        path += "?" + "&".join(passed) if passed else ""
    return path


def _passes(part: str, names: tuple[str, ...]) -> bool:
    name, _, value = part.partition("=")
    return part in names or (name in names and _VALUE.fullmatch(value) is not None)
