"""Reads a client's API key from the header that its SDK uses.

Invariants: a key in the URL is refused, because URLs are logged; two headers with different keys are refused, because
it is ambiguous which key pays.
"""

from __future__ import annotations

from aiohttp import web
from multidict import istr

from proxy.http import errors
from proxy.metering.dialect import KeyHeader

# An `istr` is lower-cased once, not at each look-up.
_HEADERS = tuple((header, istr(header)) for header in KeyHeader)


def presented(request: web.BaseRequest) -> str | None:
    """The unverified key; None if there is none. Raises ApiError for two different keys, or one in the URL."""
    headers = request.headers
    key: str | None = None
    for header, name in _HEADERS:
        value = headers.get(name)
        if value is not None:
            credential = _credential(header, value)
            if key is not None and key != credential:
                raise errors.bad_request("Two headers hold different API keys: send one.", code="ambiguous_key")
            key = credential
    if key is not None:
        return key
    query = request.raw_path.partition("?")[2]
    if any(part.partition("=")[0] == "key" for part in query.split("&")):
        raise errors.key_refused("in_url")
    return None


def _credential(header: KeyHeader, value: str) -> str:
    """The key in a header's value. Authorization may hold a bare key, as some clients send it."""
    if header is not KeyHeader.AUTHORIZATION:
        return value.strip()
    scheme, _, credential = value.partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else value
