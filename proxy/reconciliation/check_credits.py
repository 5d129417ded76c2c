"""The check of top-ups.

Invariant: a top-up equals, in every field, the entry that was written. Nothing else in the ledger can confirm it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from proxy.billing.adjustment import MONEY
from proxy.billing.entries import ENTRY_FIELDS, STORED_NAMES, EntryKind, LedgerEntry
from proxy.billing.settlement import content_hash
from proxy.ledger.amounts import nusd, rows_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.reconciliation.integrity import CheckResult, CheckScope, settled

_COLUMNS = ledger_entries.c

# The empty model lets the index by model find the few top-ups.
IS_CREDIT = (_COLUMNS.kind == EntryKind.CREDIT, _COLUMNS.model == "")


def credits_are_whole(connection: Connection, scope: CheckScope) -> CheckResult:
    """The content of each top-up has the hash that was stored with it."""
    dialect = connection.dialect
    fields = (
        nusd(STORED_NAMES[name], dialect).label(name) if name in MONEY else _COLUMNS[name] for name in ENTRY_FIELDS
    )
    query = select(*fields, _COLUMNS.content_hash).where(*IS_CREDIT)
    result = CheckResult()
    for row in rows_of(connection, settled(query, scope)):
        if not _is_whole(row):
            result.differs(exchange_id=row.exchange_id, key_id=row.key_id, wrong="differs from the entry as written")
    return result


def _is_whole(row: Any) -> bool:
    """False also if a money column contains no amount."""
    try:
        money = {name: None if getattr(row, name) is None else int(getattr(row, name)) for name in MONEY}
        fields = {name: getattr(row, name) for name in ENTRY_FIELDS}
        return content_hash(LedgerEntry(**{**fields, **money})) == str(row.content_hash)
    except (TypeError, ValueError):
        return False
