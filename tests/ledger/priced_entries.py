"""Entries as they are in real life, with the price that made them: for tests that recompute what they say."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Engine

from proxy.billing.entries import LedgerEntry
from proxy.billing.pricing.prices import configured
from proxy.billing.record import Price, Rates, UsageRecord
from proxy.billing.settlement import content_hash, entry
from proxy.ledger.settling.store import LedgerStore
from proxy.metering.usage import Reading, Usage, UsageSource
from proxy.reconciliation.reconcile import reconcile
from tests.ledger.entries import a_record, arriving, assert_sums

PRICE = configured(Rates(input=130_000_000, cached_input=70_000_000, output=410_000_000))
COST = configured(Rates(input=110_000_000, cached_input=50_000_000, output=370_000_000))
DEARER = configured(Rates(input=260_000_000, cached_input=140_000_000, output=820_000_000))

NODE = "node-a"
FIRST = (1 << 40) + 1
"""the first seq of a journal's first epoch"""


def a_real_record(
    number: int = 0,
    *,
    key: str = "key-1",
    model: str = "tera-large",
    started_at: float = 1_793_000_000.25,
    price: Price | None = PRICE,
    cost: Price | None = COST,
    usage: Usage | None = None,
    **differences: Any,
) -> UsageRecord:
    """The record of exchange `number`; numbers differ from one to the next."""
    record = a_record(number, **differences)
    opened = replace(record.opened, key_id=key, model=model, started_at=started_at, price=price, cost=cost)
    tokens = 100 + 7 * number
    usage = usage or Usage(tokens, tokens // 3, 50 + number, 5, tokens + 50 + number)
    return replace(record, opened=opened, reading=Reading(usage, UsageSource.REPORTED))


def a_real_entry(number: int = 0, **differences: Any) -> LedgerEntry:
    return entry(a_real_record(number, **differences))


def a_real_store(engine: Engine) -> LedgerStore:
    """On the real clock, with the real hash."""
    return LedgerStore(engine, content_hash=content_hash, clock=time.time)


def wrong(engine: Engine, **options: Any) -> dict[str, int]:
    """What reconciling finds: differences by the name of the check."""
    return {one.name: one.differences for one in reconcile(engine, clock=time.time, **options) if not one.ok}


def assert_right(engine: Engine) -> None:
    """The sums are right, by two ways of adding up, and every entry explains itself."""
    assert_sums(engine)
    assert wrong(engine) == {}


def settle(engine: Engine, *entries: LedgerEntry, node: str | None = NODE, seq: int = FIRST) -> None:
    """Settle them, with receipts numbered from `seq` on if there is a node."""
    assert len(a_real_store(engine).settle(arriving(*entries, node=node, seq=seq)).inserted) == len(entries)
