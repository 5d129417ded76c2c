"""Daily charges of projects and organizations, added up outside the settling transactions.

Invariant: `account_daily` contains exactly the entries that were settled until `account_clock`. A reader adds the later
entries, so its total does not depend on the progress here; only its duration does.

Without these sums, the spend of an organization would be read from all of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, select, true, union_all, update
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.entries import EntryKind
from proxy.ledger.amounts import nusd_sum, utc_day
from proxy.ledger.schema.tables import account_clock, account_daily, accounts, api_keys, ledger_entries
from proxy.ledger.settling.clock import settled_until
from proxy.storage.database import LedgerUnavailable, is_shared, writing

# Entries in one transaction, about: it takes a quarter of a second.
ENTRIES_MAX = 20_000

_ENTRIES = ledger_entries.c


def add_up(engine: Engine) -> bool:
    """Add the next entries; True if there may be more. Any number of processes may call this; one of them does the
    work. Raises LedgerUnavailable."""
    last = account_clock.c.settled_at
    with writing(engine) as connection:
        after = connection.execute(select(last).with_for_update(skip_locked=True)).scalar()
        if after is None or (until := settled_until(connection)) <= after:
            return False
        later = select(_ENTRIES.settled_at).where(_ENTRIES.settled_at > after, _ENTRIES.settled_at <= until)
        full = connection.execute(later.order_by(_ENTRIES.settled_at).offset(ENTRIES_MAX).limit(1)).scalar()
        until = until if full is None else full  # a settling transaction is never split
        every = union_all(*_charges(connection, after, until)).subquery()
        query = select(every.c.account_id, every.c.day, func.sum(every.c.nusd)).group_by(
            every.c.account_id, every.c.day
        )
        dialect = postgresql if is_shared(connection) else sqlite
        insert = dialect.insert(account_daily).from_select(["account_id", "day", "charged_nusd"], query.where(true()))
        more = account_daily.c.charged_nusd + insert.excluded.charged_nusd
        key = list(account_daily.primary_key.columns)
        connection.execute(insert.on_conflict_do_update(index_elements=key, set_={"charged_nusd": more}))
        connection.execute(update(account_clock).values(settled_at=until))
    return full is not None


def added_until(connection: Connection) -> float:
    """The time until which settled entries are in `account_daily`; Unix seconds. Raises LedgerUnavailable."""
    until: float | None = connection.execute(select(account_clock.c.settled_at)).scalar()
    if until is None:
        raise LedgerUnavailable("the row of table account_clock is missing: was the ledger restored in part?")
    return until


def _charges(connection: Connection, after: float, until: float) -> Iterator[Select[Any]]:
    """Charges by day, once by project and once by organization."""
    day = utc_day(_ENTRIES.started_at, connection.dialect)
    owners = ledger_entries.join(api_keys, api_keys.c.key_id == _ENTRIES.key_id)
    above = owners.join(accounts, accounts.c.account_id == api_keys.c.project_id)
    for source, account_id in ((owners, api_keys.c.project_id), (above, accounts.c.parent_id)):
        total = func.coalesce(nusd_sum("charge_usd", connection.dialect), 0)
        query = select(account_id.label("account_id"), day.label("day"), total.label("nusd")).select_from(source)
        settled = _ENTRIES.settled_at > after, _ENTRIES.settled_at <= until, _ENTRIES.kind != EntryKind.CREDIT
        yield query.where(*settled).group_by(account_id, day)
