"""The deployment that the security tests share."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

REQUEST_BYTES_MAX = 200_000

# Few enough that a test can fill them; no other test holds more than one.
EXCHANGES_MAX = 6


@dataclass(frozen=True, slots=True)
class Guarded:
    """A running proxy, a key for it, and what is behind it."""

    tokenweir: Tokenweir
    provider: ScriptedProvider
    key: str
    raw_port: int
    """where a `RawProvider` answers to the model `raw`; nobody listens there unless a test does"""

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.tokenweir.url
