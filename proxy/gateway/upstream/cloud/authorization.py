"""Authorizes requests to a provider that takes no API key.

Invariants: credentials are added to a request just before it is sent, and neither kept with it nor shown. They are
fetched off the event loop. A provider whose extra is not installed cannot be made.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from proxy.settings import ProviderSettings, SettingsError


class Authorization(Protocol):
    """Authorizes the requests of one provider."""

    async def authorized(self, request: bytes) -> bytes:
        """The request with its credentials. Raises CredentialFailedError."""

    def is_revealed_by(self, body: bytes) -> bool:
        """True if `body` contains one of the credentials."""


def authorization_of(provider: ProviderSettings) -> Authorization | None:
    """The authorization of a provider; None: it takes an API key, or nothing. Raises SettingsError if an extra is
    missing, or a file cannot be used."""
    auth = provider.auth
    if auth is None:
        return None
    name = provider.name
    try:
        if auth.aws is not None:
            from proxy.gateway.upstream.cloud.aws import AwsAuthorization

            parts = urlsplit(provider.base_url)
            region = auth.aws.region_at(parts.hostname or "")
            assert region is not None, "checked with the settings"
            return AwsAuthorization(auth.aws, region, f"{parts.scheme}://{parts.netloc}", name)
        from proxy.gateway.upstream.cloud.google import GoogleAuthorization

        assert auth.google is not None, "checked with the settings"
        return GoogleAuthorization(auth.google, name)
    except ImportError as missing:
        kind, extra = ("aws", "bedrock") if auth.aws is not None else ("google", "vertex")
        raise SettingsError(
            f"providers.{name}.auth.{kind}: needs a package that is not installed ({missing.name}): "
            f"pip install 'tokenweir[{extra}]'"
        ) from None
