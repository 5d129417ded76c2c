"""Puts right what is settled. Law: a correction is worked out and written in one transaction in which nobody else
settles, so that the second of two sees the first; entries are only ever added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, tuple_

from proxy.billing.correction import MONEY, CorrectionRequest, corrected, exchange_totals, rerated
from proxy.billing.entries import ENTRY_FIELDS, EntryKind, LedgerEntry
from proxy.billing.record import Price
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.storage.database import reading

# Settlers wait while one batch is worked out and written: a twentieth of a second.
BATCH_EXCHANGES = 500

_COLUMNS = ledger_entries.c

Prices = Callable[[LedgerEntry], tuple[Price | None, Price | None]]
"""a terminal entry → what its tokens are to be charged at, and what they cost us; None: leave it as it is"""


@dataclass(slots=True)
class CorrectionResult:
    """What rerating came to, for one key or for all. Money: nUSD, what is added."""

    adjusted: int = 0
    charge_usd: int = 0
    cost_usd: int = 0

    def add(self, line: LedgerEntry) -> None:
        """Count an adjustment."""
        self.adjusted += 1
        self.charge_usd += line.charge_usd or 0
        self.cost_usd += line.cost_usd or 0


@dataclass(slots=True)
class RerateResult:
    """What rerating has done so far."""

    exchanges: int = 0
    """were looked at"""
    by_hand: int = 0
    """of them, have money that a person has set, which stays"""
    unreadable: int = 0
    """of them, say things that cannot be priced"""
    total: CorrectionResult = field(default_factory=CorrectionResult)
    by_key: dict[tuple[str, str], CorrectionResult] = field(default_factory=dict)
    """(key_id, alias) → of that key"""

    def add(self, line: LedgerEntry) -> None:
        """Count an adjustment."""
        self.total.add(line)
        self.by_key.setdefault((line.key_id, line.key_alias), CorrectionResult()).add(line)


class Corrections:
    """Writes corrections. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, store: LedgerStore) -> None:
        self._engine = engine
        self._store = store

    def adjust(
        self, exchange_id: str, wanted: CorrectionRequest, why: str, *, dry_run: bool = False
    ) -> LedgerEntry | None:
        """Make the exchange come to what is wanted; the entry that does it, or None if it does already.

        Raises CorrectionError.
        """
        if dry_run:
            with reading(self._engine) as connection:
                return corrected(exchange_totals(_entries(connection, [exchange_id])[exchange_id]), wanted, why)
        with self._store.settling() as settling:
            line = corrected(exchange_totals(_entries(settling.connection, [exchange_id])[exchange_id]), wanted, why)
            if line is not None:
                settling.insert([Arrival(line)])
        return line

    def rerate(
        self,
        model: str,
        prices: Prices,
        *,
        since: float,
        until: float,
        dry_run: bool = False,
        progress: Callable[[RerateResult], None] = lambda _: None,
    ) -> RerateResult:
        """Give every exchange of `model` that began in [since, until) the money it has at these prices.

        Done again it changes nothing, and after an interruption the rest. `progress` is told after each batch.
        """
        rerated_ = RerateResult()
        after = (since, "")
        while page := self._page(model, after, until):
            after = (page[-1].started_at, page[-1].exchange_id)
            for line in self._batch([row.exchange_id for row in page], prices, rerated_, dry_run=dry_run):
                rerated_.add(line)
            progress(rerated_)
        return rerated_

    def _page(self, model: str, after: tuple[float, str], until: float) -> Sequence[Row[Any, Any]]:
        """The next exchanges by the time they began, as (started_at, exchange_id)."""
        cursor = (_COLUMNS.started_at, _COLUMNS.exchange_id)
        query = select(*cursor).where(
            _COLUMNS.model == model,
            _COLUMNS.kind == EntryKind.USAGE,
            _COLUMNS.started_at < until,
            tuple_(*cursor) > after,
        )
        with reading(self._engine) as connection:
            return connection.execute(query.order_by(*cursor).limit(BATCH_EXCHANGES)).all()

    def _batch(self, ids: Sequence[str], prices: Prices, so_far: RerateResult, *, dry_run: bool) -> list[LedgerEntry]:
        """First seen without holding anybody up: mostly there is nothing to do."""
        so_far.exchanges += len(ids)
        with reading(self._engine) as connection:
            lines = _repriced(_entries(connection, ids), prices, so_far)
        if dry_run or not lines:
            return lines
        with self._store.settling() as settling:
            entries = _entries(settling.connection, [line.exchange_id for line in lines])
            lines = _repriced(entries, prices, RerateResult())
            if lines:
                settling.insert([Arrival(line) for line in lines])
        return lines


def _repriced(entries: Mapping[str, Iterable[LedgerEntry]], prices: Prices, so_far: RerateResult) -> list[LedgerEntry]:
    """The adjustments that are needed."""
    lines: list[LedgerEntry] = []
    for one in entries.values():
        try:
            now = exchange_totals(one)
            line = rerated(now, *prices(now.terminal))
        except ValueError:  # one that cannot be read leaves the others alone
            so_far.unreadable += 1
            continue
        so_far.by_hand += not now.by_hand.isdisjoint(MONEY)
        lines += [line] if line is not None else []
    return lines


def _entries(connection: Connection, exchange_ids: Sequence[str]) -> dict[str, list[LedgerEntry]]:
    """All entries of each of these exchanges."""
    found: dict[str, list[LedgerEntry]] = {exchange_id: [] for exchange_id in exchange_ids}
    query = select(*(_COLUMNS[name] for name in ENTRY_FIELDS)).where(_COLUMNS.exchange_id.in_(exchange_ids))
    for row in connection.execute(query):
        found[row.exchange_id].append(LedgerEntry(*row))
    return found
