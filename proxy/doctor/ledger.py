"""The ledger's database. Law: read only; one that is not there yet is not made."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import Connection, func, or_, select

from proxy.doctor.clocks import judged
from proxy.doctor.finding import Case, Finding, error, ok, warning
from proxy.ledger.schema.migrate import is_newest
from proxy.ledger.schema.partitions import missing_partitions
from proxy.ledger.schema.tables import api_keys, dead_letters
from proxy.ledger.settling.settling import OPEN
from proxy.runtime.machine.data_folder import ledger_url
from proxy.storage.database import open_engine, reading
from proxy.storage.postgres import require_suitable

_MIGRATE = "run `tokenweir migrate`, or start a proxy or worker of this version"


def look(case: Case) -> list[Finding]:
    """Reachable, suitable, of this version; with keys, and nothing in it that a person must see to. Raises
    LedgerUnavailable, UnsuitableDatabaseError, NewerDatabaseError."""
    file = case.settings.data_dir / "ledger.db"
    if case.settings.ledger is None and not file.exists():
        return [warning("ledger", f"{file} is not there yet", "nothing: `tokenweir serve` makes it")]
    engine = open_engine(ledger_url(case.settings))
    try:
        with reading(engine) as connection:
            return list(_looked(connection, case))
    finally:
        engine.dispose()


def _looked(connection: Connection, case: Case) -> Iterator[Finding]:
    if case.settings.ledger is not None:
        yield from _server(connection)
    if not is_newest(connection):
        yield error("ledger", "it is not of this version, or empty", _MIGRATE)
        return
    yield ok("ledger", "it answers, and is of this version")
    if missing := missing_partitions(connection, case.now):
        months = ", ".join(f"{month:%Y-%m}" for month in missing)
        yield warning("ledger", f"no partitions for {months}", f"is no worker running? Or {_MIGRATE}")
    yield _keys(connection, case.now)
    yield from _letters(connection)


def _server(connection: Connection) -> Iterator[Finding]:
    """What only Postgres can get wrong."""
    require_suitable(connection)
    version = connection.exec_driver_sql("SHOW server_version").scalar_one()
    yield ok("ledger", f"PostgreSQL {str(version).split()[0]}")
    if connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one():
        yield error("ledger", "this Postgres is a standby: it takes no entries", "let the URL lead to the primary")
    off = [name for name in ("fsync", "full_page_writes") if _setting(connection, name) == "off"]
    if off:
        yield error("ledger", f"{', '.join(off)} off: a power cut can ruin all of it", f"set {off[0]} = on")
    before = time.time()
    theirs = float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
    yield judged("ledger", "Postgres's", theirs, before, time.time())


def _setting(connection: Connection, name: str) -> str:
    return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())


def _keys(connection: Connection, now: float) -> Finding:
    alive = or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now)
    usable = api_keys.c.revoked_at.is_(None), api_keys.c.blocked_at.is_(None), alive
    count = connection.execute(select(func.count()).select_from(api_keys).where(*usable)).scalar_one()
    if count:
        return ok("keys", f"{count} can be used")
    return warning("keys", "none can be used: every request gets 401", "tokenweir keys create --alias NAME")


def _letters(connection: Connection) -> Iterator[Finding]:
    wanted = dead_letters.c.state == OPEN
    count, first = connection.execute(select(func.count(), func.min(dead_letters.c.first_seen)).where(wanted)).one()
    if count:
        days = max(0.0, time.time() - first) / 86_400
        said = f"{count} records could not be settled, the first {days:.1f} days ago"
        yield error("ledger", said, "tokenweir dead-letters list, then retry or drop each")
