"""Where a client's key stands: in the header that its SDK puts it in.

Law: never in the URL, which others log; and one key: where two headers disagree, nobody can say who pays.
"""

from __future__ import annotations

from aiohttp import web
from multidict import istr

from proxy.http import errors
from proxy.metering.dialect import KeyHeader

# An `istr` is made lower case once, not whenever it is looked for.
_HEADERS = tuple((header, istr(header)) for header in KeyHeader)


def presented(request: web.BaseRequest) -> str | None:
    """The key as it came; None if there is none. Raises ApiError: two different ones, or one in the URL."""
    headers = request.headers
    found: str | None = None
    for header, name in _HEADERS:
        value = headers.get(name)
        if value is not None:
            credential = _credential(header, value)
            if found is not None and found != credential:
                raise errors.bad_request("Two headers hold different API keys: send one.", code="ambiguous_key")
            found = credential
    if found is not None:
        return found
    query = request.raw_path.partition("?")[2]
    if any(part.partition("=")[0] == "key" for part in query.split("&")):
        raise errors.key_refused("in_url")
    return None


def _credential(header: KeyHeader, value: str) -> str:
    """A bare key in Authorization is accepted as some clients send it."""
    if header is not KeyHeader.AUTHORIZATION:
        return value.strip()
    scheme, _, credential = value.partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else value
