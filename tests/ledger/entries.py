"""What the ledger's tests are made of: entries, records, ledgers in a folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import msgspec
from msgspec.structs import replace
from sqlalchemy import Engine, Table, func, insert, select

from proxy.billing.entries import ENTRY_FIELDS, TOKENS, LedgerEntry
from proxy.billing.keys import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from proxy.billing.money import Nusd
from proxy.billing.record import BillableParts, Outcome, UsageRecord
from proxy.ledger.dimensions import sums as dimension_sums
from proxy.ledger.grants.burning import burn
from proxy.ledger.schema.account_tables import accounts, grant_clock
from proxy.ledger.schema.tables import account_clock, dimension_clock, ledger_clock, metadata
from proxy.ledger.settling import account_sums
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.metering.usage import Reading, Usage, UsageSource
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.storage.database import is_shared, open_engine, reading, sqlite_url, writing
from tests.billing.records import OPENED
from tests.support.ledger_tables import read_balances, read_daily
from tests.support.sqlite import empty_ledger

SPACE = UUID("00000000-0000-0000-0000-000000000001")

_DEFAULT: dict[str, Any] = {"name": "default", "created_at": 1_792_000_000.0}
DEFAULT_ACCOUNTS = [
    {**_DEFAULT, "account_id": DEFAULT_ORGANIZATION, "kind": "organization", "parent_id": None, "revision": 1},
    {**_DEFAULT, "account_id": DEFAULT_PROJECT, "kind": "project", "parent_id": DEFAULT_ORGANIZATION, "revision": 2},
]
"""as the last migration makes them"""

ASKED: dict[str, Any] = {
    "key_id": "key-1", "key_alias": "anna", "provider": "tera", "model": "tera-large",
    "upstream_model": "tera-large-0901", "endpoint": "/v1/chat/completions", "streamed": True,
    "started_at": 1_793_000_000.25,
}  # fmt: skip
"""what every entry and every record has of its request"""

ENTRY = LedgerEntry(
    **ASKED, entry_id="", exchange_id="", kind="usage", outcome="served", finish_reason="stop",
    usage_source="reported", estimator=None, prompt_tokens=100, cached_tokens=20, completion_tokens=50,
    reasoning_tokens=None, total_tokens=150, events=33, bytes=9_000, cost_nusd=Nusd(123_456_789),
    charge_nusd=Nusd(1_000_000_001), price_version="config-0badcafe", provider_response_id="resp-1",
    first_token_ms=321.5, duration_ms=1_200.125, details={"bills": "prompt+output"},
)  # fmt: skip


def id_at(moment: datetime, low_bits: int = 0) -> str:
    """A UUIDv7 of this moment."""
    ms = round(moment.timestamp() * 1000)
    return str(UUID(int=ms << 80 | 7 << 76 | 2 << 62 | low_bits))


def an_entry(number: int = 0, *, exchange: str | None = None, **differences: Any) -> LedgerEntry:
    """The entry of exchange `number` (or of the one named), with its id derived as in real life."""
    exchange_id = str(UUID(int=number + 1)) if exchange is None else exchange
    entry = replace(ENTRY, exchange_id=exchange_id, **differences)
    return replace(entry, entry_id=str(uuid5(SPACE, f"{exchange_id}/{entry.kind}/{entry.seq}")))


def a_record(number: int = 0, **differences: Any) -> UsageRecord:
    opened = replace(
        OPENED, **ASKED, exchange_id=str(UUID(int=number + 1)), price=None, cost=None, prompt_tokens_estimate=90,
        slot=0,
    )  # fmt: skip
    reading = Reading(Usage(100, 20, 50, None, 150), UsageSource.REPORTED)
    record = UsageRecord(opened, Outcome.SERVED, reading, BillableParts.EVERYTHING, 33, 9_000, 1_200.125)
    return replace(record, **differences)


def number_of(record: UsageRecord) -> int:
    return UUID(record.opened.exchange_id).int - 1


def content_hash(entry: LedgerEntry) -> str:
    """Equal for equal entries."""
    said = [getattr(entry, name) for name in ENTRY_FIELDS]
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


def a_ledger(folder: Path, name: str = "ledger.db") -> Engine:
    """A new ledger, or the one that is there."""
    file = folder / name
    return open_engine(sqlite_url(file) if file.exists() else empty_ledger(file))


def arriving(*entries: LedgerEntry, node: str | None = None, seq: int = 0) -> list[Arrival]:
    """Entries on their way in; with receipts numbered from `seq` on if there is a node."""
    return [Arrival(entry, node, None if node is None else seq + place) for place, entry in enumerate(entries)]


def batch_of(numbers: Iterable[int]) -> list[Arrival]:
    return arriving(*map(an_entry, numbers))


def emptied(engine: Engine) -> None:
    """As after `migrate`: for tests that need many ledgers."""
    deletes = [f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)]
    with writing(engine) as connection:
        for statement in ["; ".join(deletes)] if is_shared(engine) else deletes:
            connection.exec_driver_sql(statement)
        for clock in (ledger_clock, account_clock, dimension_clock, grant_clock):
            connection.execute(insert(clock).values(id=1, settled_at=0.0))
        connection.execute(insert(accounts).values(DEFAULT_ACCOUNTS))


def add_up(engine: Engine) -> None:
    """Add all settled entries to the daily sums."""
    for step in (account_sums.add_up, dimension_sums.add_up, burn):
        while step(engine):
            pass


def a_store(engine: Engine) -> LedgerStore:
    return LedgerStore(engine, content_hash=content_hash, clock=time.time)


def stored(engine: Engine) -> list[LedgerEntry]:
    """Every entry, in the order in which they were settled."""
    return list(EntryReader(engine, EntryFilter()).new_entries())


def assert_sums(engine: Engine) -> None:
    """Balances and days are the sums of the entries, and there are no others."""
    entries = stored(engine)
    assert read_balances(engine) == balances_of(entries)
    assert read_daily(engine, date.min, date.max) == days_of(entries)


def balances_of(entries: Iterable[LedgerEntry]) -> list[tuple[Any, ...]]:
    """As they must be."""
    return _sums(entries, lambda entry: (entry.key_id,))


def days_of(entries: Iterable[LedgerEntry]) -> list[tuple[Any, ...]]:
    """As they must be."""
    return _sums(
        entries, lambda entry: (datetime.fromtimestamp(entry.started_at, UTC).date(), entry.key_id, entry.model)
    )


def _sums(entries: Iterable[LedgerEntry], group_of: Callable[[LedgerEntry], tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    names = ("charge_nusd", "cost_nusd", *TOKENS)
    sums: dict[Any, list[int]] = {}
    for entry in entries:
        total = sums.setdefault(group_of(entry), [0] * (len(names) + 1))
        for place, name in enumerate(names):
            total[place] += getattr(entry, name) or 0
        total[-1] += 1
    return [(*group, *total) for group, total in sorted(sums.items())]


def count(engine: Engine, table: Table) -> int:
    with reading(engine) as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()
