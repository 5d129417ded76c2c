"""The owner of a stored response, and its provider. A pure value."""

from __future__ import annotations

import msgspec

from proxy.billing.keys import ApiKey


class ResponseOwner(msgspec.Struct, frozen=True, gc=False):
    """The maker of a response that a provider stores under its id."""

    key_id: str
    project_id: str
    provider: str
    dialect: str
    """in which it was made: `openai.responses`"""
    credential: str | None = None
    """the name of the provider's credential, if it has several"""
    exchange_id: str = ""
    runs: bool = False
    """it is made in the background, and its exchange is still open"""

    def shares_with(self, key: ApiKey) -> bool:
        """True for the key that made it, and for keys of its project."""
        return key.shares(self.key_id, self.project_id)
