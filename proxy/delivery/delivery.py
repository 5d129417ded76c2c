"""A record on its way from a journal to the ledger, as whoever settles it sees it.

Law: a delivery names where its record comes from (node and journal seq: the ledger's receipt) and is never the only
copy: the journal has the record until the ledger says that it has it.
"""

from __future__ import annotations

import msgspec

from proxy.billing.record import UsageRecord
from proxy.journal.frames import decode_record


class DeliveredRecord(msgspec.Struct, frozen=True, gc=False):
    """One record, taken from a queue."""

    node: str
    """node_id of the journal it comes from; empty: nobody's that we know"""
    seq: int
    """its seq in that journal"""
    payload: bytes
    """the record as JSON"""
    deliveries: int = 1
    """how often somebody has tried to settle it, this time included"""
    message_id: bytes = b""
    """its name towards the queue; empty where the seq is the name"""

    @property
    def record(self) -> UsageRecord:
        """The record. Raises UndecodableError (a ValueError) if this version cannot read it."""
        return decode_record(self.payload)
