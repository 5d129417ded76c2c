"""Daily charges of projects and organizations, added up outside the settling transactions.

Invariant: `account_daily` contains exactly the entries that were settled until `account_clock`. A reader adds the later
entries, so its total does not depend on the progress here; only its duration does.

Without these sums, the spend of an organization would be read from all of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, Select, func, select, true, union_all
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.entries import EntryKind
from proxy.ledger.amounts import nusd_sum, utc_day
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import account_clock, account_daily, ledger_entries
from proxy.ledger.settling.sum_clocks import Step, next_step
from proxy.storage.database import is_shared

# Entries in one transaction, about: it takes a quarter of a second.
ENTRIES_MAX = 20_000

_ENTRIES = ledger_entries.c


def add_up(engine: Engine) -> bool:
    """Add the next entries; True if there may be more. Any number of processes may call this; one of them does the
    work. Raises LedgerUnavailable."""
    with next_step(engine, account_clock, ENTRIES_MAX) as step:
        if step is None:
            return False
        every = union_all(*_charges(step)).subquery()
        query = select(every.c.account_id, every.c.day, func.sum(every.c.nusd)).group_by(
            every.c.account_id, every.c.day
        )
        dialect = postgresql if is_shared(engine) else sqlite
        insert = dialect.insert(account_daily).from_select(["account_id", "day", "charged_nusd"], query.where(true()))
        more = account_daily.c.charged_nusd + insert.excluded.charged_nusd
        key = list(account_daily.primary_key.columns)
        step.connection.execute(insert.on_conflict_do_update(index_elements=key, set_={"charged_nusd": more}))
    return not step.is_last


def _charges(step: Step) -> Iterator[Select[Any]]:
    """Charges by day, once by project and once by organization."""
    dialect = step.connection.dialect
    day = utc_day(_ENTRIES.started_at, dialect)
    owners = ledger_entries.join(api_keys, api_keys.c.key_id == _ENTRIES.key_id)
    above = owners.join(accounts, accounts.c.account_id == api_keys.c.project_id)
    for source, account_id in ((owners, api_keys.c.project_id), (above, accounts.c.parent_id)):
        total = func.coalesce(nusd_sum("charge_usd", dialect), 0)
        query = select(account_id.label("account_id"), day.label("day"), total.label("nusd")).select_from(source)
        yield query.where(step.entries, _ENTRIES.kind != EntryKind.CREDIT).group_by(account_id, day)
