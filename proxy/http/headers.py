"""Which headers cross, each way.

Law: an allow-list. The client's key never goes up, the provider's key never comes down.
"""

from __future__ import annotations

import re

from aiohttp import HttpVersion10, HttpVersion11, web
from multidict import CIMultiDictProxy, istr

from proxy.http.errors import ApiError, bad_request
from proxy.http.framing import Head

EXCHANGE_HEADER = "x-tokenweir-exchange"
SERVER = ("Server", "tokenweir")

TRACEPARENT = istr("traceparent")

# Up: what a provider may use of a request, in every language. Everything that names the client stays here.
_UP = (istr("OpenAI-Beta"), istr("X-Stainless-Retry-Count"), TRACEPARENT, istr("tracestate"))
# Down: what an SDK reads. Rate limits of the provider describe our account there, not the client's key: not passed.
_DOWN = {
    name.lower(): name
    for name in (
        "Content-Type", "Content-Encoding", "Content-Language", "Retry-After", "X-Request-Id", "openai-model",
        "openai-processing-ms", "openai-version", "x-should-retry",
    )
}  # fmt: skip

_STREAM = (("Cache-Control", "no-cache, no-transform"), ("X-Accel-Buffering", "no"))


def upward(client: CIMultiDictProxy[str], more: tuple[str, ...] = ()) -> str:
    """The header lines that a client adds to a request, each with its CRLF. `more`: names that its language has."""
    lines = ""
    for name in (*_UP, *more):
        value = client.get(name)
        if value is not None and name in more:  # a list may come in several lines
            value = ", ".join(client.getall(name))
        if value is not None and _plain(value):
            lines += f"{name}: {value}\r\n"
    return lines


def downward(upstream: Head, exchange_id: str, *, streamed: bool, more: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Headers of the response to the client. `more`: names that its language has, in lower case."""
    headers = [
        (_DOWN.get(name, name), value)
        for name, value in upstream.headers
        if (name in _DOWN or name in more) and _plain(value)
    ]
    if streamed:
        headers.extend(_STREAM)
    headers.append((EXCHANGE_HEADER, exchange_id))
    headers.append(SERVER)
    return headers


def _plain(value: str) -> bool:
    """Visible ASCII and spaces only: nothing that could end a header or mean something else to another parser."""
    return value.isascii() and value.isprintable()


# A second one of these could be read by the next parser instead of the first.
_ONCE = (
    "Authorization", "Host", "Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Expect",
    "Upgrade", "Idempotency-Key", "x-api-key", "x-goog-api-key", "api-key",
)  # fmt: skip
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_VERSIONS = (HttpVersion11, HttpVersion10)


def validate_head(request: web.BaseRequest) -> bool:
    """Raise ApiError for a request that two parsers could read differently.

    True: it is answered, but the connection is closed after it (it offered another protocol).
    """
    headers = request.headers
    names = set(map(str.lower, headers))
    if len(names) < len(headers):
        _refuse_repeated(headers)
    if request.version not in _VERSIONS:
        raise ApiError(505, "HTTP/1.1 is spoken here.", code="http_version")
    host = headers.get("Host")
    if host is not None and _HOST.fullmatch(host) is None:
        raise bad_request("The Host header is not a host.", param="Host", code="invalid_header")
    if not request.raw_path.startswith("/"):
        raise bad_request("The request target must be a path.", code="invalid_target")
    coded = "transfer-encoding" in names
    if coded:
        _refuse_coding(request, headers["Transfer-Encoding"])
    if request.method in ("GET", "HEAD") and (coded or headers.get("Content-Length", "0") != "0"):
        raise bad_request(f"A {request.method} request has no body.", code="unexpected_body")
    if not names.isdisjoint(_ASKING):
        _refuse_unmet(headers)
    return "upgrade" in names


def _refuse_repeated(headers: CIMultiDictProxy[str]) -> None:
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise bad_request(f"More than one {name} header.", param=name, code="duplicate_header")


def _refuse_coding(request: web.BaseRequest, coding: str) -> None:
    """Chunked, and nothing but chunked, in HTTP/1.1 only."""
    if coding.lower() != "chunked" or request.version < HttpVersion11 or "Content-Length" in request.headers:
        raise bad_request("The request's length is ambiguous.", param="Transfer-Encoding", code="invalid_header")


_ASKING = ("expect", "trailer", "upgrade")


def _refuse_unmet(headers: CIMultiDictProxy[str]) -> None:
    """What a client asks of us beyond an answer, and does not get."""
    if headers.get("Expect", "100-continue").lower() != "100-continue":
        raise ApiError(417, "Only 100-continue can be expected.", param="Expect", code="expectation_failed")
    if "Trailer" in headers:
        raise bad_request("Trailers are not accepted.", param="Trailer", code="invalid_header")
    # Java's client offers h2c with its first request: an HTTP/1.1 answer declines it. Nothing else is offered by any.
    if headers.get("Upgrade", "h2c").lower() != "h2c":
        raise bad_request("There is nothing to upgrade to.", param="Upgrade", code="invalid_header")
