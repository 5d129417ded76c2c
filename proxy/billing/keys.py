"""A key as the rooms exchange it, and how long one lives. Law: the secret itself is never part of a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.billing.durations import seconds_from

EXPIRES_DEFAULT = "90d"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of one key. Times: Unix seconds, UTC."""

    key_id: str
    alias: str
    digest: bytes = field(repr=False)
    """keyed hash of the secret; 32 bytes"""
    hint: str
    """enough to recognise a key by, `tw-…abcd`"""
    models: frozenset[str] | None
    """the models it may ask for; None: all"""
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    revision: int
    """of the whole table at this row's last change; a later change has a higher one"""

    def allows(self, model: str) -> bool:
        """True if this key may ask for `model`."""
        return self.models is None or model in self.models

    def live(self, now: float) -> bool:
        """True if it is neither revoked nor expired at `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def expires_at_from(text: str, now: float) -> float | None:
    """`--expires`: "90d", "12h", … (at most ten years) → Unix seconds; "never" → None. Raises ValueError."""
    return None if text == "never" else now + seconds_from(text)
