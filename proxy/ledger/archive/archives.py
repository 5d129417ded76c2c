"""The months whose entries are in an archive."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, select, true

from proxy.billing.period import Month, month_from
from proxy.ledger.schema.partitions import first_id
from proxy.ledger.schema.tables import archives, ledger_entries

_COLUMNS = archives.c


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive: all entries of exchanges that began before the end of a month, without those of earlier archives."""

    month: Month
    statements_until: Month
    """the last month with some of these entries on its statements"""
    entries: int
    file: str
    """name of the archive's file"""
    sha256: str
    """SHA-256 of the archive's file, hexadecimal"""
    archived_at: float
    """Unix seconds"""
    archived_by: str
    removed: bool
    """False while some of the entries are still in the ledger"""


def read_archives(connection: Connection) -> list[Archive]:
    """All archives, in the order of the months."""
    return [
        Archive(
            month=month_from(row.month),
            statements_until=month_from(row.statements_until),
            entries=row.entries,
            file=row.file,
            sha256=row.sha256,
            archived_at=row.archived_at,
            archived_by=row.archived_by,
            removed=row.removed_at is not None,
        )
        for row in connection.execute(select(archives).order_by(_COLUMNS.month))
    ]


def archived_until(connection: Connection) -> Month | None:
    """The last month whose entries are in an archive; None: there is no archive."""
    found = read_archives(connection)
    return found[-1].month if found else None


def statements_until(connection: Connection) -> Month | None:
    """The last month of whose statements entries are in an archive; None: there is no archive."""
    return max((archive.statements_until for archive in read_archives(connection)), default=None)


def not_archived(connection: Connection) -> ColumnElement[bool]:
    """An SQL condition: the entry is in no archive. Archived entries may still be in the table."""
    month = archived_until(connection)
    return true() if month is None else ledger_entries.c.exchange_id >= first_id(month.end)


def require_entries(connection: Connection, month: Month) -> None:
    """Check that all entries of the month's statements are in the ledger. Raises ValueError if some are in an
    archive."""
    holder = next((archive for archive in read_archives(connection) if archive.statements_until >= month), None)
    if holder is not None:
        raise ValueError(f"{month}: entries of its statements are archived, in {holder.file} and before")


def holder_of(connection: Connection, exchange_id: str) -> Archive | None:
    """The archive with the entries of this exchange, if it was ever settled. None: it began later, or the id is
    invalid."""
    return next(
        (archive for archive in read_archives(connection) if exchange_id < first_id(archive.month.end)),
        None,
    )


def absent(connection: Connection, exchange_id: str) -> str:
    """The reason, for an error message, why the ledger has no entry of the exchange."""
    holder = holder_of(connection, exchange_id)
    return "the ledger has no such exchange" if holder is None else f"it is archived: look in {holder.file}"
