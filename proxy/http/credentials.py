"""Reads a client's API key from the header that its SDK uses.

Invariants: a key in the URL is refused, because URLs are logged. Of several credentials, only a Tokenweir key counts;
two different Tokenweir keys are refused, because it is ambiguous which key pays. Web pages send the key as a
subprotocol of their WebSocket, since they cannot set its headers.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from multidict import istr

from proxy.http import errors
from proxy.http.websocket_head import key_offered
from proxy.metering.dialect import KeyHeader

# An `istr` is lower-cased once, not at each look-up.
_HEADERS = tuple((header, istr(header)) for header in KeyHeader)


def presented(request: web.BaseRequest, is_ours: Callable[[str], object]) -> str | None:
    """The unverified key; None if there is none. `is_ours`: true if a text has the form of a Tokenweir key.

    Raises ApiError for two different Tokenweir keys, or a key in the URL.
    """
    headers = request.headers
    key: str | None = None
    for header, name in _HEADERS:
        if name in headers and (credential := _credential(header, headers[name])):
            key = credential if key is None else _of_two(key, credential, is_ours)
    if key is None and "Sec-WebSocket-Protocol" in headers:
        key = key_offered(request)
    if key is not None:
        return key
    query = request.raw_path.partition("?")[2]
    if any(part.partition("=")[0] == "key" for part in query.split("&")):
        raise errors.key_refused("in_url")
    return None


def is_signature(credential: str) -> bool:
    """True if `credential` is the signature of an AWS SDK, which only the secret of an access key could verify."""
    return credential.startswith("AWS4-")


def _of_two(first: str, second: str, is_ours: Callable[[str], object]) -> str:
    """Choose a key: an application for several providers can send another provider's key in another header."""
    if first == second or not is_ours(second):
        return first
    if is_ours(first):
        raise errors.bad_request("Two headers hold different API keys: send one.", code="ambiguous_key")
    return second


def _credential(header: KeyHeader, value: str) -> str:
    """The key in a header's value. Authorization may hold a bare key, as some clients send it."""
    if header is not KeyHeader.AUTHORIZATION:
        return value.strip()
    scheme, _, credential = value.partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else value
