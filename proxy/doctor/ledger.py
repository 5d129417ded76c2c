"""Checks the ledger's database. Invariant: the check only reads, and does not create a missing database."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from sqlalchemy import Connection, func, or_, select

from proxy.billing.details import EntryDetails
from proxy.billing.keys import AccountKind
from proxy.billing.money import nusd_from_usd, usd_text
from proxy.doctor.clocks import clock_finding
from proxy.doctor.finding import CheckedDeployment, Finding, error, ok, warning
from proxy.ledger.accounts.account_store import read_accounts
from proxy.ledger.limit_rules import read_rules
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.migrate import is_newest
from proxy.ledger.schema.partitions import missing_partitions
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.ledger.settling.settling import OPEN
from proxy.runtime.machine.data_folder import ledger_url
from proxy.settings import route
from proxy.storage.database import opened, reading
from proxy.storage.postgres import require_suitable

# Number of the newest entries that are checked for unbilled usage.
RECENT = 1_000
# A larger difference between a provider's own sum and ours is said, as a share of it.
STATED_ERROR_MAX = 0.02

_MIGRATE = "run `tokenweir migrate`"


def check(case: CheckedDeployment) -> list[Finding]:
    """Check that the database is reachable, suitable and of this version, has usable keys and no open dead letters.
    Raises LedgerUnavailable, UnsuitableDatabaseError, NewerDatabaseError."""
    file = case.settings.data_dir / "ledger.db"
    if case.settings.ledger is None and not file.exists():
        return [warning("ledger", f"{file} does not exist yet", "nothing to do: `tokenweir serve` creates it")]
    with opened(ledger_url(case.settings)) as engine, reading(engine) as connection:
        return list(_findings(connection, case))


def _findings(connection: Connection, case: CheckedDeployment) -> Iterator[Finding]:
    if case.settings.ledger is not None:
        yield from _server(connection)
    if not is_newest(connection):
        yield error("ledger", "the schema is empty or not of this version", _MIGRATE)
        return
    yield ok("ledger", "the database is reachable and of this version")
    if missing := missing_partitions(connection, case.now):
        months = ", ".join(f"{month:%Y-%m}" for month in missing)
        yield warning("ledger", f"no partitions for {months}", f"check that a worker is running, or {_MIGRATE}")
    if not case.settings.identities:
        yield _keys(connection, case.now)
    yield from _projects(connection, case)
    yield from _limits(connection, case)
    yield from _dead_letters(connection)
    yield from _unbilled(connection)


def _server(connection: Connection) -> Iterator[Finding]:
    """The checks of a Postgres server."""
    require_suitable(connection)
    version = connection.exec_driver_sql("SHOW server_version").scalar_one()
    yield ok("ledger", f"PostgreSQL {str(version).split()[0]}")
    if connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one():
        yield error("ledger", "this Postgres is a standby and accepts no entries", "point the URL to the primary")
    off = [name for name in ("fsync", "full_page_writes") if _setting(connection, name) == "off"]
    if off:
        yield error(
            "ledger", f"{', '.join(off)} off: a power failure can corrupt the whole database", f"set {off[0]} = on"
        )
    before = time.time()
    remote = float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
    yield clock_finding("ledger", "Postgres's", remote, before, time.time())


def _setting(connection: Connection, name: str) -> str:
    return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())


def _keys(connection: Connection, now: float) -> Finding:
    alive = or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now)
    usable = api_keys.c.revoked_at.is_(None), api_keys.c.blocked_at.is_(None), alive
    count = connection.execute(select(func.count()).select_from(api_keys).where(*usable)).scalar_one()
    if count:
        return ok("keys", f"{count} usable")
    return warning("keys", "none is usable: every request gets 401", "run `tokenweir keys create --alias NAME`")


def _projects(connection: Connection, case: CheckedDeployment) -> Iterator[Finding]:
    """Find projects of identities that do not exist, or are not the only one of their name."""
    of_kind = accounts.c.kind == AccountKind.PROJECT.value
    listed = [(one.account_id, one.name) for one in read_accounts(connection, of_kind)]
    ids, named = {account_id for account_id, _ in listed}, Counter(name for _, name in listed)
    for one in case.settings.identities.values():
        for project in sorted({*([one.project] if one.project else ()), *one.projects.values()} - ids):
            if named[project] != 1:
                how_many = "several projects have the name" if named[project] else "no project has the id or the name"
                yield warning(
                    f"identity {one.name}",
                    f"project: {how_many} {project!r}; its tokens are refused",
                    "write an id of `tokenweir accounts list`, or run `tokenweir accounts create-project`",
                )


def _limits(connection: Connection, case: CheckedDeployment) -> Iterator[Finding]:
    """Find limits by rule for providers or with a fallback model that the configuration does not have."""
    for rule in read_rules(connection):
        for provider in sorted(set(rule.providers) - case.settings.providers.keys()):
            message = f"the configuration has no provider {provider!r}; the limit {rule.name!r} counts nothing there"
            yield warning("limits", message, f"delete the limit, or add `providers.{provider}`")
        model = rule.fallback_model
        if model is not None and route(case.settings.models, model) is None:
            message = f"the configuration has no model {model!r}, the fallback model of the limit {rule.name!r}"
            yield warning("limits", message, f"run `tokenweir limits update {rule.rule_id} --fallback-model MODEL`")


def _dead_letters(connection: Connection) -> Iterator[Finding]:
    is_open = dead_letters.c.state == OPEN
    count, first = connection.execute(select(func.count(), func.min(dead_letters.c.first_seen)).where(is_open)).one()
    if count:
        days = max(0.0, time.time() - first) / 86_400
        message = f"{count} records could not be settled, the first {days:.1f} days ago"
        yield error("ledger", message, "run `tokenweir dead-letters list`, then retry or drop each")


def _unbilled(connection: Connection) -> Iterator[Finding]:
    """Find usage in the newest entries that was reported but not read, or that has no price."""
    entries = select(
        ledger_entries.c.provider, ledger_entries.c.model, ledger_entries.c.details, ledger_entries.c.cost_nusd
    )
    newest = entries.order_by(ledger_entries.c.settled_at.desc(), ledger_entries.c.entry_id.desc()).limit(RECENT)
    unread, unpriced, refuted = Counter[str](), Counter[str](), Counter[str]()
    stated, ours = Counter[str](), Counter[str]()  # nUSD, of entries that have both
    rows = connection.execute(newest).all()
    for provider, model, stored, cost_nusd in rows:
        details = EntryDetails.of(stored)
        if cost_nusd is not None and details.stated_usd is not None:
            stated[provider] += nusd_from_usd(details.stated_usd)
            ours[provider] += cost_nusd
        unread.update(f"{provider}: {path}" for path in details.unread or ())
        refuted.update(f"{provider}/{model}: {count}" for count in details.refuted or ())
        unpriced.update(f"{provider}: {unit}" for unit in details.unpriced_units or ())
    among = f"of the newest {len(rows):,} entries"
    for what, count in sorted(unread.items()):
        advice = "if it costs nothing, list it in the provider's `not_billed`; else see `tokenweir adjust`"
        yield warning("usage", f"{what} is not read, in {count} {among}", advice)
    for what, count in sorted(refuted.items()):
        advice = "ask the provider; `usage: {refuted: estimate}` of the provider estimates such counts"
        yield warning("usage", f"{what} contradicts the answer, in {count} {among}", advice)
    for provider, nusd in sorted(stated.items()):
        if abs(ours[provider] - nusd) > STATED_ERROR_MAX * nusd:
            message = f"states a cost of {usd_text(nusd)} USD where the price lists give {usd_text(ours[provider])}"
            yield warning(
                "usage", f"{provider} {message}, {among}", "compare: `tokenweir ledger --explain`; set `cost`"
            )
    for what, count in sorted(unpriced.items()):
        yield warning("usage", f"{what} has no price, in {count} {among}", "set it, then `tokenweir rerate` the model")
