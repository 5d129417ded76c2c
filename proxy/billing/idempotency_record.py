"""An earlier request with the same `Idempotency-Key`. Pure value."""

from __future__ import annotations

import msgspec


class IdempotencyRecord(msgspec.Struct, frozen=True, gc=False):
    """The exchange that claimed the key."""

    exchange_id: str
    same_body: bool
    ended: bool
    answer: bytes | None
    """the whole JSON response body, if it was stored"""
