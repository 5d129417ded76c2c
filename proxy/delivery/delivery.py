"""A record that a settler takes from a queue.

Invariants: the record has its origin (node and journal seq: the key of the ledger's receipt), and is never the only
copy: the journal keeps it until the ledger confirms it.
"""

from __future__ import annotations

import msgspec

from proxy.billing.record import UsageRecord
from proxy.journal.frames import decode_record


class DeliveredRecord(msgspec.Struct, frozen=True, gc=False):
    """One record, taken from a queue."""

    node: str
    """node_id of the record's journal; empty: unknown"""
    seq: int
    """the record's seq in that journal"""
    payload: bytes
    """the record as JSON"""
    deliveries: int = 1
    """number of attempts to settle it, this one included"""
    message_id: bytes = b""
    """the id of the message in the queue; empty if the seq is the id"""

    @property
    def record(self) -> UsageRecord:
        """The record. Raises UndecodableError (a ValueError) if this version cannot read it."""
        return decode_record(self.payload)
