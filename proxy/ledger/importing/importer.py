"""Settles imported rows.

Invariants: a row is settled once, however often and by however many processes it is imported. A row that differs from
the entry with its id changes nothing and is an error. Rows of a closed month are settled now, so they are on the
statement of the current month, like every late entry; rows of an archived month are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from proxy.billing.entries import EntryKind, LedgerEntry, usage_of
from proxy.billing.money import ZERO_NUSD, Nusd
from proxy.billing.period import Closings, Month, month_of
from proxy.ledger.archive.archives import archived_until
from proxy.ledger.periods.closing import read_closings
from proxy.ledger.settling.corrections import entries_of
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.storage.database import reading

BATCH_ROWS = 500
MODELS_SHOWN = 20


class ImportFailedError(ValueError):
    """The message names the line."""


@dataclass(slots=True)
class KeyImport:
    """The new entries that one key pays."""

    key_alias: str
    imported: int = 0
    charge_nusd: Nusd = ZERO_NUSD


@dataclass(slots=True)
class ImportResult:
    """The effect of an import. Money: of the new entries."""

    rows: int = 0
    imported: int = 0
    repeated: int = 0
    """rows that the ledger has already"""
    late: int = 0
    """new entries of a closed month: they are on the statement of the current month"""
    unpriced: int = 0
    """new entries without a charge, because the model has no price"""
    unpriced_models: set[str] = field(default_factory=set)
    """the first MODELS_SHOWN of their models"""
    by_key: dict[str, KeyImport] = field(default_factory=dict)
    """key id → its new entries"""
    charge_nusd: Nusd = ZERO_NUSD
    cost_nusd: Nusd = ZERO_NUSD


class Importer:
    """Settles batches of entries. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, store: LedgerStore, *, dry_run: bool) -> None:
        """`dry_run`: write nothing."""
        self._engine, self._store, self._dry_run = engine, store, dry_run
        self.result = ImportResult()
        with reading(engine) as connection:
            self.archived: Month | None = archived_until(connection)
            """rows of this month and before cannot be imported; None: there is no archive"""
            self._closings: Closings = read_closings(connection)

    def add(self, batch: Sequence[tuple[int, LedgerEntry]]) -> None:
        """Settle entries, each with its line. Raises ImportFailedError, and then settles none of them."""
        ids = [entry.exchange_id for _, entry in batch]
        if self._dry_run:
            with reading(self._engine) as connection:
                new = self._new(batch, {name: lines for name, lines in entries_of(connection, ids).items() if lines})
        else:
            with self._store.settling() as settling:
                stored: dict[str, list[LedgerEntry]] = {}
                for one in settling.stored(ids).values():
                    stored.setdefault(one.entry.exchange_id, []).append(one.entry)
                new = self._new(batch, stored)
                if new:
                    settling.insert([Arrival(entry) for entry in new])
        self._count(len(batch), new)

    def _new(
        self, batch: Sequence[tuple[int, LedgerEntry]], stored: Mapping[str, Sequence[LedgerEntry]]
    ) -> list[LedgerEntry]:
        new = []
        for line, entry in batch:
            before = stored.get(entry.exchange_id)
            if before is None:
                new.append(entry)
            elif not any(_is_same(one, entry) for one in before if one.kind == EntryKind.USAGE):
                why = "a row with this id and time was imported before, for another key or with other counts"
                raise ImportFailedError(f"line {line}: id: {why}")
        return new

    def _count(self, rows: int, new: Sequence[LedgerEntry]) -> None:
        result = self.result
        result.rows += rows
        result.imported += len(new)
        result.repeated += rows - len(new)
        for entry in new:
            result.late += self._closings.closed_at(month_of(entry.started_at)) is not None
            if entry.charge_nusd is None:
                result.unpriced += 1
                if len(result.unpriced_models) < MODELS_SHOWN:
                    result.unpriced_models.add(entry.model)
            of_key = result.by_key.setdefault(entry.key_id, KeyImport(entry.key_alias))
            of_key.imported += 1
            of_key.charge_nusd = Nusd(of_key.charge_nusd + (entry.charge_nusd or 0))
            result.charge_nusd = Nusd(result.charge_nusd + (entry.charge_nusd or 0))
            result.cost_nusd = Nusd(result.cost_nusd + (entry.cost_nusd or 0))


def _is_same(before: LedgerEntry, entry: LedgerEntry) -> bool:
    """Whether both entries are of the same row; prices may have changed since."""

    def stated(one: LedgerEntry) -> tuple[object, ...]:
        return one.key_id, one.model, one.provider, one.started_at, usage_of(one)

    return stated(before) == stated(entry)
