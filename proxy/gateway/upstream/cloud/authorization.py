"""What authorizes requests to a provider that takes no API key.

Invariants: what is added to a request is added on the way out, and nothing of it is kept or shown. Credentials are
fetched off the event loop. Without the extra that is needed, a provider cannot be made.
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
        """Whether `body` contains one of them."""


def authorization_of(provider: ProviderSettings) -> Authorization | None:
    """None: the provider takes an API key, or nothing. Raises SettingsError: an extra is missing, or a file cannot be
    used."""
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
