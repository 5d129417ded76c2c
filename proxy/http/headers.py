"""Selects the headers that are forwarded in each direction, and validates request heads.

Invariants: only headers of an allow-list pass: those here, the dialect's, and the operator's. The client's key is never
sent upstream, nor the provider's key to the client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import HttpVersion10, HttpVersion11, web
from multidict import CIMultiDictProxy, istr

from proxy.foundation.header_names import HeaderNames
from proxy.http.errors import ApiError, bad_request, no_upgrade
from proxy.http.framing import Head

EXCHANGE_HEADER = "x-tokenweir-exchange"
FALLBACK_HEADER = "x-tokenweir-fallback-model"
"""the model that serves instead of the requested one"""
KEY_HEADER = istr("x-tokenweir-key")
"""the client's Tokenweir key, if the client's usual header has its own provider credential"""
PROVIDER_KEY_HEADER = istr("x-tokenweir-provider-key")
"""the client's own provider credential"""
SERVER = ("Server", "tokenweir")

TRACEPARENT = istr("traceparent")

USER_AGENT = "tokenweir"

# Upstream, in every dialect: headers that a provider uses. The application's name and address are those that it gives
# to OpenRouter. Not OpenAI-Organization and OpenAI-Project: the owner of the provider's key, the operator, chooses
# them.
_UP = (
    istr("OpenAI-Beta"), istr("X-Stainless-Retry-Count"), TRACEPARENT, istr("tracestate"), istr("HTTP-Referer"),
    istr("X-Title"),
)  # fmt: skip
# Downstream: headers that SDKs read. The provider's rate limits are dropped: they describe the operator's account.
_DOWN = {
    name.lower(): name
    for name in (
        "Content-Type", "Content-Encoding", "Content-Language", "Retry-After", "retry-after-ms", "X-Request-Id",
        "openai-model", "openai-processing-ms", "openai-version", "x-should-retry",
    )
}  # fmt: skip

STREAM = (("Cache-Control", "no-cache, no-transform"), ("X-Accel-Buffering", "no"))


Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """The operator's header settings for a provider. Names are in lower case."""

    fixed: frozenset[str]
    """names of headers with a configured value: the client's are dropped"""
    up: HeaderNames
    down: HeaderNames

    @property
    def agent_passes(self) -> bool:
        """True if the client's User-Agent replaces the proxy's."""
        return "user-agent" in self.up and "user-agent" not in self.fixed

    def names_up(self, client: CIMultiDictProxy[str], listed: Iterable[str]) -> list[str]:
        """The names of the client's headers that pass. `listed`: those that pass without the operator's rules."""
        known = {name.lower(): name for name in listed}
        for name in client:
            if name.lower() in self.up:
                known.setdefault(name.lower(), name)
        return [name for lower, name in known.items() if lower not in self.fixed]

    def names_down(self, upstream: Head, own: Headers) -> set[str]:
        """The names of the provider's headers that pass. `own`: those that the proxy sets itself."""
        return {name for name, _ in upstream.headers if name in self.down} - {name for name, _ in own}


def upward(client: CIMultiDictProxy[str], more: tuple[str, ...] = (), rules: HeaderRules | None = None) -> str:
    """The client's headers for the upstream request, as lines with CRLF. `more`: names that the dialect adds."""
    lines = ""
    names: Iterable[str] = (*_UP, *more)
    if rules is not None:
        names = rules.names_up(client, names)
        if rules.agent_passes and "User-Agent" not in client:
            lines = f"User-Agent: {USER_AGENT}\r\n"
    for name in names:
        if name in client:
            # A list may be split into several headers.
            value = ", ".join(client.getall(name)) if name in more else client[name]
            if _plain(value):
                lines += f"{name}: {value}\r\n"
    return lines


def downward(
    upstream: Head,
    exchange_id: str,
    *,
    streamed: bool,
    more: tuple[str, ...] = (),
    rules: HeaderRules | None = None,
    own: Headers = (),
) -> list[tuple[str, str]]:
    """Headers of the response to the client. `exchange_id`: empty outside an exchange. `more`: names that the dialect
    adds, in lower case.

    `own`: further headers of the proxy, which replace the provider's headers of these names.
    """
    if rules is not None:
        more = (*more, *rules.names_down(upstream, own))
    headers = [
        (_DOWN.get(name, name), value)
        for name, value in upstream.headers
        if (name in _DOWN or name in more) and _plain(value)
    ]
    if streamed:
        headers.extend(STREAM)
    if exchange_id:
        headers.append((EXCHANGE_HEADER, exchange_id))
    headers.append(SERVER)
    headers.extend(own)
    return headers


def is_token(value: str, *tokens: str) -> bool:
    """Whether a header's value is one of these words, which are ASCII: the Kelvin sign is no `k`."""
    return value.isascii() and value.strip(" \t").lower() in tokens


def _plain(value: str) -> bool:
    """True for visible ASCII and spaces only: no other parser can end the header there or read it differently."""
    return value.isascii() and value.isprintable()


# Headers that may occur once: of two, the next parser could use the other one.
_ONCE = (
    "Authorization", "Host", "Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Expect",
    "Upgrade", "Idempotency-Key", "x-api-key", "x-goog-api-key", "api-key", str(KEY_HEADER), str(PROVIDER_KEY_HEADER),
)  # fmt: skip
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_VERSIONS = (HttpVersion11, HttpVersion10)


def validate_head(request: web.BaseRequest) -> bool:
    """Raise ApiError for an ambiguous request head.

    Returns True if the connection must be closed after the response: the client offered another protocol.
    """
    headers = request.headers
    names = set(map(str.lower, headers))
    if len(names) < len(headers):
        _refuse_repeated(headers)
    if request.version not in _VERSIONS:
        raise ApiError(505, "Only HTTP/1.1 is supported.", code="http_version")
    host = headers.get("Host")
    if host is not None and _HOST.fullmatch(host) is None:
        raise bad_request("The Host header is not a valid host.", param="Host", code="invalid_header")
    if not request.raw_path.startswith("/"):
        raise bad_request("The request target must be a path.", code="invalid_target")
    coded = "transfer-encoding" in names
    if coded:
        _refuse_coding(request, headers["Transfer-Encoding"])
    if request.method in ("GET", "HEAD") and (coded or headers.get("Content-Length", "0") != "0"):
        raise bad_request(f"A {request.method} request must not have a body.", code="unexpected_body")
    if not names.isdisjoint(_DEMANDS):
        _refuse_demands(headers)
    return "upgrade" in names


def _refuse_repeated(headers: CIMultiDictProxy[str]) -> None:
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise bad_request(f"The request has more than one {name} header.", param=name, code="duplicate_header")


def _refuse_coding(request: web.BaseRequest, coding: str) -> None:
    """Accept `chunked` alone, in HTTP/1.1, without Content-Length."""
    if not is_token(coding, "chunked") or request.version < HttpVersion11 or "Content-Length" in request.headers:
        raise bad_request(
            "The request's length is ambiguous: see Transfer-Encoding.",
            param="Transfer-Encoding",
            code="invalid_header",
        )


_DEMANDS = ("expect", "trailer", "upgrade")


def _refuse_demands(headers: CIMultiDictProxy[str]) -> None:
    """Refuse expectations, trailers and upgrades that the proxy does not support."""
    if not is_token(headers.get("Expect", "100-continue"), "100-continue"):
        raise ApiError(
            417, "Of the header Expect, only 100-continue is supported.", param="Expect", code="expectation_failed"
        )
    if "Trailer" in headers:
        raise bad_request(
            "Trailers are not accepted: remove the header Trailer.", param="Trailer", code="invalid_header"
        )
    # Java's client offers h2c with its first request; an HTTP/1.1 response declines it. The routes
    # decide whether a path supports WebSocket.
    if not is_token(headers.get("Upgrade", "h2c"), "h2c", "websocket"):
        raise no_upgrade()
