"""Reads a client's API key from the header that its SDK uses, or from `x-tokenweir-key`; and the client's own provider
credential.

Invariants: a key in the URL is refused, because URLs are logged. Of several credentials, only a Tokenweir key counts;
two different Tokenweir keys are refused, because it is ambiguous which key pays. Web pages send the key as a
subprotocol of their WebSocket, since they cannot set its headers. A Tokenweir key is never a provider credential.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from multidict import istr

from proxy.foundation.secret import Secret
from proxy.http import errors
from proxy.http.headers import KEY_HEADER, PROVIDER_KEY_HEADER
from proxy.http.websocket_head import key_offered
from proxy.metering.dialect import KeyHeader

# An `istr` is lower-cased once, not at each look-up.
_HEADERS = tuple((header, istr(header)) for header in KeyHeader)


def presented(request: web.BaseRequest, is_ours: Callable[[str], object]) -> str | None:
    """The unverified key; None if there is none. `is_ours`: true if a text has the form of a Tokenweir key.

    Raises ApiError for two different Tokenweir keys, or a key in the URL.
    """
    headers = request.headers
    key = named = _named_key(headers[KEY_HEADER]) if KEY_HEADER in headers else None
    for header, name in _HEADERS:
        if name in headers and (credential := _credential(header, headers[name])):
            key = credential if key is None else _of_two(key, credential, is_ours, is_named=named is not None)
    if key is None and "Sec-WebSocket-Protocol" in headers:
        key = key_offered(request)
    if key is not None:
        return key
    query = request.raw_path.partition("?")[2]
    if any(part.partition("=")[0] == "key" for part in query.split("&")):
        raise errors.key_refused("in_url")
    return None


def has_credential_header(request: web.BaseRequest) -> bool:
    """True if a header of the request is for a key, even an empty one."""
    return KEY_HEADER in request.headers or any(name in request.headers for _, name in _HEADERS)


def is_signature(credential: str) -> bool:
    """True if `credential` is the signature of an AWS SDK, which only the secret of an access key could verify."""
    return credential.startswith("AWS4-")


def _named_key(value: str) -> str | None:
    """The key in the value of `x-tokenweir-key`, bare or as a bearer token; None: the value is empty."""
    return _credential(KeyHeader.AUTHORIZATION, value).strip() or None


def _of_two(first: str, second: str, is_ours: Callable[[str], object], *, is_named: bool) -> str:
    """The Tokenweir key of two: an application for several providers can send another provider's key in another
    header. `is_named`: `first` is from `x-tokenweir-key`."""
    if first == second or not is_ours(second):
        return first
    if is_named or is_ours(first):
        raise errors.bad_request("Two headers hold different API keys: send one.", code="ambiguous_key")
    return second


@dataclass(frozen=True, slots=True)
class ProviderCredential:
    """A client's own credential at a provider."""

    secret: Secret
    header: KeyHeader | None
    """the header in which it is sent to the provider; None: the provider's usual one"""

    def line(self, usual: KeyHeader) -> str:
        """The header line of the request to the provider, with its CRLF."""
        header, secret = self.header or usual, self.secret.reveal()
        return f"Authorization: Bearer {secret}\r\n" if header is KeyHeader.AUTHORIZATION else f"{header}: {secret}\r\n"


# No client's credential is longer; those of subscriptions are tokens with claims.
_PROVIDER_KEY = re.compile(r"[!-~]{1,8192}", re.ASCII)


def provider_credential(request: web.BaseRequest, is_ours: Callable[[str], object]) -> ProviderCredential | None:
    """The client's own provider credential: in `x-tokenweir-provider-key`, bare or as a bearer token; or, if the
    request has `x-tokenweir-key`, in the header that its SDK uses, in which it is sent to the provider, too. None:
    there is none. `is_ours`: as for `presented`.

    Raises ApiError for two different credentials, a Tokenweir key, or one that cannot stand in a header.
    """
    headers = request.headers
    found: dict[str, KeyHeader | None] = {}
    if PROVIDER_KEY_HEADER in headers:
        value = headers[PROVIDER_KEY_HEADER]
        header = KeyHeader.AUTHORIZATION if value.lower().startswith("bearer ") else None
        found[_credential(KeyHeader.AUTHORIZATION, value).strip()] = header
    elif KEY_HEADER in headers:
        key = _named_key(headers[KEY_HEADER])
        for header, name in _HEADERS:
            if name in headers and (credential := _credential(header, headers[name])) and credential != key:
                found.setdefault(credential, header)
    if not found:
        return None
    if len(found) > 1:
        raise errors.bad_request("Two headers hold different provider keys: send one.", code="ambiguous_provider_key")
    secret, header = found.popitem()
    if is_ours(secret) or secret == presented(request, is_ours) or not _PROVIDER_KEY.fullmatch(secret):
        message = f"{PROVIDER_KEY_HEADER}: must be your key at the provider, not one of this proxy, without blanks"
        raise errors.bad_request(message, param=str(PROVIDER_KEY_HEADER), code="invalid_provider_key")
    return ProviderCredential(Secret(secret), header)


def _credential(header: KeyHeader, value: str) -> str:
    """The key in a header's value. Authorization may hold a bare key, as some clients send it."""
    if header is not KeyHeader.AUTHORIZATION:
        return value.strip()
    scheme, _, credential = value.partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else value
