"""Corrections of settled exchanges.

Invariants: a correction is computed and written in one settling transaction, which excludes all others, so the second
of two corrections sees the first; entries are only added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from msgspec import structs
from sqlalchemy import ColumnElement, Connection, Engine, Row, and_, or_, select, true, tuple_

from proxy.billing.adjustment import MONEY
from proxy.billing.byok import NOTHING, byok_lists
from proxy.billing.correction import (
    CorrectionRequest,
    ExchangeTotals,
    UnknownExchangeError,
    corrected,
    exchange_totals,
    replaced_amounts,
    rerated,
)
from proxy.billing.details import EntryDetails
from proxy.billing.entries import ENTRY_FIELDS, EntryKind, LedgerEntry
from proxy.billing.money import ZERO_NUSD, Nusd
from proxy.billing.pricing.prices import unpriced_service
from proxy.billing.record import Price
from proxy.billing.reread import read_again
from proxy.ledger.archive.archives import absent
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.settings.prices import PriceLists
from proxy.storage.database import reading

# Settlers wait while a batch is computed and written: a twentieth of a second.
BATCH_EXCHANGES = 500

_COLUMNS = ledger_entries.c
_ALL = true()
# With the condition of the index.
_UNPRICED = and_(_COLUMNS.charge_nusd.is_(None), or_(_COLUMNS.cost_nusd.is_(None), _COLUMNS.charge_nusd.is_(None)))

Cursor = tuple[float, str]
"""(start in Unix seconds, id) of an exchange"""

Prices = Callable[[LedgerEntry, str | None], tuple[Price | None, Price | None]]
"""(terminal entry, another model that the exchange used, or None) → the price of the charge and the price of the
provider; None: unchanged"""


def charged_at(lists: PriceLists) -> Prices:
    """These lists for the charge, by the beginning of the exchange. The cost stays, and so do the prices of other
    models that the exchange used."""

    def prices(entry: LedgerEntry, model: str | None, /) -> tuple[Price | None, None]:
        return lists.at(entry.started_at) if model is None else None, None

    return prices


@dataclass(slots=True)
class CorrectionResult:
    """The effect of rerating, for one key or for all. Money: nUSD, the amounts added."""

    adjusted: int = 0
    charge_nusd: Nusd = ZERO_NUSD
    cost_nusd: Nusd = ZERO_NUSD

    def add(self, line: LedgerEntry) -> None:
        """Count an adjustment."""
        self.adjusted += 1
        self.charge_nusd = Nusd(self.charge_nusd + (line.charge_nusd or 0))
        self.cost_nusd = Nusd(self.cost_nusd + (line.cost_nusd or 0))


@dataclass(slots=True)
class RerateResult:
    """The progress of rerating."""

    exchanges: int = 0
    """exchanges examined"""
    by_hand: int = 0
    """exchanges whose amounts an operator has set; they are not changed"""
    unreadable: int = 0
    """exchanges that cannot be priced because their entries are malformed"""
    total: CorrectionResult = field(default_factory=CorrectionResult)
    by_key: dict[tuple[str, str], CorrectionResult] = field(default_factory=dict)
    """(key_id, alias) → the effect on the key"""

    def add(self, line: LedgerEntry) -> None:
        """Count an adjustment."""
        self.total.add(line)
        self.by_key.setdefault((line.key_id, line.key_alias), CorrectionResult()).add(line)


@dataclass(slots=True)
class SimulatedSum:
    """Charges and costs of exchanges, as settled and as simulated. Money: nUSD; unknown amounts count as 0."""

    exchanges: int = 0
    charge_nusd: Nusd = ZERO_NUSD
    simulated_charge_nusd: Nusd = ZERO_NUSD
    cost_nusd: Nusd = ZERO_NUSD
    simulated_cost_nusd: Nusd = ZERO_NUSD
    unpriced: int = 0
    """exchanges without a charge as settled"""
    unknown_cost: int = 0
    """exchanges with an unknown cost as settled"""
    without_price: int = 0
    """exchanges whose tier has no price in the list: not simulated, or simulated at the prices of another tier"""

    def add(self, now: ExchangeTotals, line: LedgerEntry | None, *, without_price: bool) -> None:
        """Count an exchange; `line`: the adjustment that would be needed."""
        self.exchanges += 1
        self.unpriced += now.charge_nusd is None
        self.unknown_cost += now.cost_nusd is None
        self.without_price += without_price
        for name in MONEY:
            amount = getattr(now, name) or 0
            change = 0 if line is None else getattr(line, name) or 0
            setattr(self, name, getattr(self, name) + amount)
            setattr(self, f"simulated_{name}", getattr(self, f"simulated_{name}") + amount + change)

    def add_all(self, other: SimulatedSum) -> None:
        """Add another sum."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class Simulation:
    """The result of a simulation."""

    total: SimulatedSum = field(default_factory=SimulatedSum)
    by_key: dict[tuple[str, str, str], SimulatedSum] = field(default_factory=dict)
    """(key_id, alias, model) → the sum"""
    by_hand: int = 0
    """exchanges whose amounts an operator has set; these amounts stay"""
    unreadable: int = 0
    """exchanges that cannot be priced because their entries are malformed; no sum includes them"""


class _Repricing(NamedTuple):
    reread: bool = False
    unpriced_only: bool = False


class Corrections:
    """Writes corrections. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, store: LedgerStore, actor: str | None = None) -> None:
        """`actor`: the operator's name, for the entries."""
        self._engine = engine
        self._store = store
        self._actor = actor

    def adjust(
        self, exchange_id: str, request: CorrectionRequest, why: str, *, dry_run: bool = False
    ) -> LedgerEntry | None:
        """Add the adjustment that gives the exchange the requested totals. Returns the entry; None if nothing changes.

        Raises CorrectionError, UnknownExchangeError for one that the ledger does not have.
        """
        if dry_run:
            with reading(self._engine) as connection:
                lines = self._signed(corrected(_totals(connection, exchange_id), request, why))
        else:
            with self._store.settling() as settling:
                lines = self._signed(corrected(_totals(settling.connection, exchange_id), request, why))
                if lines:
                    settling.insert([Arrival(line) for line in lines])
        return lines[0] if lines else None

    def replaced_by_hand(self, exchange_id: str, request: CorrectionRequest) -> dict[str, Nusd | None]:
        """See `replaced_amounts`. Raises UnknownExchangeError."""
        with reading(self._engine) as connection:
            return replaced_amounts(_entries(connection, exchange_id), request)

    def before(self, line: LedgerEntry) -> ExchangeTotals:
        """The totals of the exchange to which this adjustment was, or would be, added."""
        with reading(self._engine) as connection:
            entries = _entries(connection, line.exchange_id)
        return exchange_totals(one for one in entries if one.kind != EntryKind.ADJUSTMENT or one.seq < line.seq)

    def _signed(self, *lines: LedgerEntry | None) -> list[LedgerEntry]:
        """The lines that are not None, with the operator's name."""
        made = [line for line in lines if line is not None]
        details = [structs.replace(EntryDetails.of(line.details), actor=self._actor).stored() for line in made]
        return [structs.replace(line, details=one) for line, one in zip(made, details, strict=True)]

    def rerate(
        self,
        model: str,
        prices: Prices,
        *,
        since: float,
        until: float,
        reread: bool = False,
        dry_run: bool = False,
        progress: Callable[[RerateResult], None] = lambda _: None,
        result: RerateResult | None = None,
    ) -> RerateResult:
        """Adjust every exchange of `model` that began in [since, until) (Unix seconds) to these prices; with `reread`,
        also to the reported usage as this version reads it.

        Idempotent; after an interruption, run it again for the rest. `progress` is called after each batch, and may
        raise. `result`: to be added to.
        """
        result = RerateResult() if result is None else result
        for ids in self._pages(model, since, until):
            for line in self._batch(ids, prices, result, _Repricing(reread=reread), dry_run=dry_run):
                result.add(line)
            progress(result)
        return result

    def rate_unpriced(self, prices: Prices, after: Cursor, until: float, total: CorrectionResult) -> Cursor | None:
        """Adjust the next exchanges without a charge that began before `until` (Unix seconds) to these prices, if there
        is one by now; a cost that is known stays. Idempotent. Adds to `total`. Returns where to go on; None: all are
        done."""
        page = self._page(None, after, until, _UNPRICED)
        ids = [row.exchange_id for row in page]
        for line in self._batch(ids, prices, RerateResult(), _Repricing(unpriced_only=True), dry_run=False):
            total.add(line)
        return (page[-1].started_at, ids[-1]) if page else None

    def simulate(
        self,
        prices: Prices,
        *,
        since: float,
        until: float,
        model: str | None = None,
        otherwise: Callable[[ExchangeTotals], ExchangeTotals] = lambda now: now,
        progress: Callable[[Simulation], None] = lambda _: None,
        result: Simulation | None = None,
    ) -> Simulation:
        """The totals that `rerate` would give every exchange that began in [since, until), as if used and served
        `otherwise`. Writes nothing. `model` None: all models. `progress`, `result`: see `rerate`."""
        result, prices = Simulation() if result is None else result, _for_terms(prices)
        for ids in self._pages(model, since, until):
            with reading(self._engine) as connection:
                entries = entries_of(connection, ids)
            for one in entries.values():
                try:
                    now = exchange_totals(one)
                    then = otherwise(now)
                    price, cost = prices(now.terminal, None)
                    others = {
                        other_model.model: prices(now.terminal, other_model.model) for other_model in now.other_models
                    }
                    line = rerated(then, price, cost, others)
                except ValueError:  # a malformed exchange must not stop the others
                    result.unreadable += 1
                    continue
                whose = (now.terminal.key_id, now.terminal.key_alias, now.terminal.model)
                lacking = price is None or unpriced_service(price, then.served_as) != []
                result.by_hand += not now.by_hand.isdisjoint(MONEY)
                for each in (result.total, result.by_key.setdefault(whose, SimulatedSum())):
                    each.add(now, line, without_price=lacking)
            progress(result)
        return result

    def _pages(self, model: str | None, since: float, until: float) -> Iterator[list[str]]:
        """The ids of the exchanges that began in [since, until), by start time. `model` None: all models."""
        after = (since, "")
        while page := self._page(model, after, until):
            after = (page[-1].started_at, page[-1].exchange_id)
            yield [row.exchange_id for row in page]

    def _page(
        self, model: str | None, after: Cursor, until: float, where: ColumnElement[bool] = _ALL
    ) -> Sequence[Row[Any, Any]]:
        """The next exchanges by start time, as (started_at, exchange_id)."""
        cursor = (_COLUMNS.started_at, _COLUMNS.exchange_id)
        query = select(*cursor).where(
            true() if model is None else _COLUMNS.model == model,
            where,
            _COLUMNS.kind == EntryKind.USAGE,
            _COLUMNS.started_at >= after[0],
            _COLUMNS.started_at < until,
            tuple_(*cursor) > after,
        )
        with reading(self._engine) as connection:
            return connection.execute(query.order_by(*cursor).limit(BATCH_EXCHANGES)).all()

    def _batch(
        self, ids: Sequence[str], prices: Prices, result: RerateResult, how: _Repricing, *, dry_run: bool
    ) -> list[LedgerEntry]:
        """Reprice a batch. Reads without the settling lock first, because most batches need no adjustment."""
        result.exchanges += len(ids)
        with reading(self._engine) as connection:
            lines = self._signed(*_repriced(entries_of(connection, ids), prices, result, how))
        if dry_run or not lines:
            return lines
        with self._store.settling() as settling:
            entries = entries_of(settling.connection, [line.exchange_id for line in lines])
            lines = self._signed(*_repriced(entries, prices, RerateResult(), how))
            if lines:
                settling.insert([Arrival(line) for line in lines])
        return lines


def _for_terms(prices: Prices) -> Prices:
    """The prices, as changed by the terms of exchanges with the client's own credential. None for what was imported at
    a stated cost: that stays."""

    def changed(terminal: LedgerEntry, model: str | None) -> tuple[Price | None, Price | None]:
        details = EntryDetails.of(terminal.details)
        if details.imported is not None and "stated" in (details.cost or ()):
            return None, None
        found, byok = prices(terminal, model), details.byok
        return found if byok is None else byok_lists(str(byok.get("terms", NOTHING)), *found)

    return changed


def _repriced(
    entries: Mapping[str, Iterable[LedgerEntry]], prices: Prices, result: RerateResult, how: _Repricing
) -> list[LedgerEntry]:
    """The adjustments that are needed."""
    prices, lines = _for_terms(prices), list[LedgerEntry]()
    for one in entries.values():
        try:
            totals = exchange_totals(one)
            if how.unpriced_only and totals.charge_nusd is not None:
                continue
            read = read_again(totals.terminal) if how.reread else None
            used = totals.other_models if read is None else read.other_models
            others = {one.model: prices(totals.terminal, one.model) for one in used}
            price, cost = prices(totals.terminal, None)
            if how.unpriced_only and totals.cost_nusd is not None:
                cost = None
            line = rerated(totals, price, cost, others, read)
        except ValueError:  # a malformed exchange must not stop the others
            result.unreadable += 1
            continue
        result.by_hand += not totals.by_hand.isdisjoint(MONEY)
        lines += [line] if line is not None else []
    return lines


def _totals(connection: Connection, exchange_id: str) -> ExchangeTotals:
    """The totals of an exchange. Raises CorrectionError, UnknownExchangeError for one that the ledger does not have."""
    return exchange_totals(_entries(connection, exchange_id))


def _entries(connection: Connection, exchange_id: str) -> list[LedgerEntry]:
    """All entries of an exchange. Raises UnknownExchangeError."""
    entries = entries_of(connection, [exchange_id])[exchange_id]
    if not entries:
        raise UnknownExchangeError(f"{exchange_id}: {absent(connection, exchange_id)}")
    return entries


def entries_of(connection: Connection, exchange_ids: Sequence[str]) -> dict[str, list[LedgerEntry]]:
    """Exchange id → all its entries. Raises LedgerUnavailable."""
    entries: dict[str, list[LedgerEntry]] = {exchange_id: [] for exchange_id in exchange_ids}
    query = select(*(_COLUMNS[name] for name in ENTRY_FIELDS)).where(_COLUMNS.exchange_id.in_(exchange_ids))
    for row in connection.execute(query):
        entries[row.exchange_id].append(LedgerEntry(*row))
    return entries
