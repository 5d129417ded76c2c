"""The unsettled records and the checks of a month that is to be closed, and the automatic closing of months. Invariant:
a settled record is not listed, however late its receipt is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Engine, or_, select

from proxy.billing.period import Month, month_of
from proxy.journal.reader import unsettled_exchanges
from proxy.ledger.periods.closing import close, issue_all, read_closings
from proxy.ledger.schema.partitions import first_id
from proxy.ledger.schema.tables import dead_letters
from proxy.ledger.settling.settling import OPEN
from proxy.ledger.settling.spend import settled
from proxy.ledger.settling.store import LedgerStore
from proxy.reconciliation.integrity import RecordsInFlight
from proxy.reports.closing_checks import ClosingCheck, read_closing_checks
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.machine.records_in_flight import read_records_in_flight
from proxy.settings import Settings
from proxy.storage.database import reading
from proxy.storage.executor import InThread

# Enough to look for the cause.
EXAMPLES_MAX = 5
CLOSE_S = 600.0
_DAY_S = 86_400.0

_log = logging.getLogger(__name__)

Unsettled = Mapping[str, Any]
"""fields: what (journal, lease, queue or dead letter), count, and examples (the first few ids)"""


async def unsettled(settings: Settings, engine: Engine, month: Month, in_thread: InThread) -> list[Unsettled]:
    """The records that may still be settled for this month or an earlier one: exchanges in the journals of this
    machine, under lease, and in open dead letters; and any record in the queue. Raises LedgerUnavailable,
    QueueUnavailable, OSError."""
    bound = first_id(month.end)
    found = [("journal", await in_thread(_in_journals, settings))]
    queued = 0
    if settings.queue is not None:
        in_flight = await read_records_in_flight(settings)
        found.append(("lease", {one for ids in in_flight.leased.values() for one in ids}))
        queued = len(in_flight.queued)
    named = []
    for what, ids in found:
        early = {one for one in ids if one < bound}
        if open_ids := early - await in_thread(settled, engine, early):
            named.append(_unsettled(what, open_ids))
    if queued:
        named.append({"what": "queue", "count": queued, "examples": []})
    if letters := await in_thread(_open_letters, engine, month):
        named.append(_unsettled("dead letter", letters))
    return named


async def closing_checks(settings: Settings, engine: Engine, month: Month, in_thread: InThread) -> list[ClosingCheck]:
    """The checks of the month that prevent no closing; see `read_closing_checks`. Raises LedgerUnavailable,
    QueueUnavailable."""
    in_flight = RecordsInFlight() if settings.queue is None else await read_records_in_flight(settings)
    read: list[ClosingCheck] = await in_thread(
        partial(read_closing_checks, engine, month, clock=time.time, in_flight=in_flight)
    )
    return read


def _unsettled(what: str, ids: Collection[str]) -> Unsettled:
    return {"what": what, "count": len(ids), "examples": sorted(ids)[:EXAMPLES_MAX]}


def _in_journals(settings: Settings) -> set[str]:
    alone = DataFolder(settings.data_dir)
    folders = [alone, *alone.left_behind()]
    return {one for folder in folders for one in unsettled_exchanges(folder.journal)}


def _open_letters(engine: Engine, month: Month) -> list[str]:
    """The ids of the month's open dead letters. A letter without an exchange may belong to any month."""
    columns = dead_letters.c
    early = or_(columns.exchange_id < first_id(month.end), columns.exchange_id.is_(None))
    with reading(engine) as connection:
        return list(connection.execute(select(columns.id).where(columns.state == OPEN, early)).scalars())


async def close_months(settings: Settings, engine: Engine, store: LedgerStore, in_thread: InThread) -> None:
    """Close each month `billing.close_after_days` after its end, when all of it is settled; until cancelled. Each round
    also completes the closings that were interrupted, even if no month is due."""
    waiting: Month | None = None
    while True:
        try:
            month = await in_thread(_due, engine, settings.billing.close_after_days)
            if month is not None:
                left = await unsettled(settings, engine, month, in_thread)
                if not left:
                    await in_thread(
                        partial(close, store, month, by="billing.close_after_days", letterhead=settings.statement)
                    )
                    _log.info("%s is closed", month)
                elif month != waiting:
                    waiting = month
                    _log.warning("%s is not closed, because records of it are unsettled: %s", month, left)
            await in_thread(issue_all, engine)
        except OSError as error:
            _log.warning("months cannot be closed now: %s", error)
        await asyncio.sleep(CLOSE_S)


def _due(engine: Engine, after_days: int | None) -> Month | None:
    """The last month that is due for closing, if it is open."""
    if after_days is None:
        return None
    month = month_of(month_of(time.time() - after_days * _DAY_S).since - 1)
    with reading(engine) as connection:
        last = read_closings(connection).last
    return month if last is None or month > last else None
