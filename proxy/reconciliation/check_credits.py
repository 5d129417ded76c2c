"""What top-ups must say. Law: a top-up is the one kind of entry that nothing else in the ledger explains; so what it
says is what was written, in every field, or it is a difference.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from proxy.billing.correction import MONEY
from proxy.billing.entries import ENTRY_FIELDS, EntryKind, LedgerEntry
from proxy.billing.settlement import content_hash
from proxy.ledger.amounts import nusd, rows_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.reconciliation.integrity import CheckResult, CheckScope, settled

_COLUMNS = ledger_entries.c

# They name no model: without that, the index by model could not find the few of them.
IS_CREDIT = (_COLUMNS.kind == EntryKind.CREDIT, _COLUMNS.model == "")


def credits_are_whole(connection: Connection, scope: CheckScope) -> CheckResult:
    """The content of each still has the hash that was written beside it."""
    dialect = connection.dialect
    fields = (nusd(name, dialect).label(name) if name in MONEY else _COLUMNS[name] for name in ENTRY_FIELDS)
    query = select(*fields, _COLUMNS.content_hash).where(*IS_CREDIT)
    found = CheckResult()
    for row in rows_of(connection, settled(query, scope)):
        if not _is_whole(row):
            found.differs(exchange_id=row.exchange_id, key_id=row.key_id, wrong="is not what was written")
    return found


def _is_whole(row: Any) -> bool:
    """Money may be anything here."""
    try:
        money = {name: None if getattr(row, name) is None else int(getattr(row, name)) for name in MONEY}
        fields = {name: getattr(row, name) for name in ENTRY_FIELDS}
        return content_hash(LedgerEntry(**{**fields, **money})) == str(row.content_hash)
    except (TypeError, ValueError):
        return False
