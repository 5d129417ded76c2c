"""The document at which an issuer publishes the address of its keys (OpenID Connect Discovery).

Invariant: a document that names another issuer is not used.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from proxy.identity.documents import DocumentClient, IdentityProviderError

_WELL_KNOWN = "/.well-known/openid-configuration"


class IssuerDocument(msgspec.Struct, frozen=True):
    """The part of an issuer's document that is needed to verify its tokens."""

    issuer: str
    jwks_uri: str


_T = TypeVar("_T", bound=IssuerDocument)


def configuration_url(issuer: str) -> str:
    """Where the document is. `issuer`: without a slash at its end."""
    return f"{issuer}{_WELL_KNOWN}"


async def discover(documents: DocumentClient, issuer: str, kind: type[_T]) -> _T:
    """The issuer's document. Raises IdentityProviderError."""
    url = configuration_url(issuer)
    document = await documents.get(url)
    try:
        found = msgspec.convert(document, kind)
    except ValueError:
        raise IdentityProviderError(f"{url}: is not the configuration of an OpenID provider") from None
    if found.issuer.rstrip("/") != issuer:
        raise IdentityProviderError(f"{url}: belongs to another issuer than the configured one")
    return found
