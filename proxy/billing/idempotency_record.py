"""A request that came before, under the same `Idempotency-Key`. Pure value."""

from __future__ import annotations

import msgspec


class IdempotencyRecord(msgspec.Struct, frozen=True, gc=False):
    """The exchange that has the name."""

    exchange_id: str
    same_body: bool
    ended: bool
    answer: bytes | None
    """its whole JSON body, where it was kept"""
