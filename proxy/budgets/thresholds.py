"""Budgets of which much is spent: who is to be told, and who was.

Law: a scope, a window, a budget and a threshold make one alert, whoever notices it, and however often. It is told at
least once, or given up after a day. Who tells it claims it first, by moving on the time of its next try: if that one
dies, another does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, Engine, bindparam, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.limits import Limits, window_end, window_start
from proxy.billing.reservation import CounterState
from proxy.ledger.accounts.limits import limits_of
from proxy.ledger.schema.tables import accounts, api_keys, budget_alerts
from proxy.ledger.settling.spend import IDS_MAX, batches
from proxy.storage.database import is_shared, reading, writing

THRESHOLDS = (50, 80, 100)
"""in percent of a budget"""

OPEN, SENT, GIVEN_UP = "open", "sent", "given_up"
"""states of an alert: somebody is to be told; was told; could not be told in time"""

RETRY_S_MIN, RETRY_S_MAX = 10.0, 3_600.0
GIVE_UP_S = 86_400.0

# Longer than any try takes; as long, an alert whose sender died waits for another.
CLAIM_S = 60.0

# Beginnings of a window that lie closer together than this are the same: no window is a second long.
_SAME_S = 0.001
_ERROR_CHARS_MAX = 200
_COLUMNS = budget_alerts.c

KEY = "key"
"""kind of the subjects that are no accounts"""


class Subject(msgspec.Struct, frozen=True):
    """Whose budget it is."""

    scope_id: str
    kind: str
    """key, project or organization"""
    name: str
    limits: Limits
    minted_at: float

    def window_end(self, since: float) -> float | None:
        """When the window ends that began then; None: never, or it is no window of theirs any more."""
        limits = self.limits
        middle = since + 2 * _SAME_S  # not to be taken for the end of the window before
        if abs(window_start(limits.budget_window, self.minted_at, middle) - since) > _SAME_S:
            return None
        return window_end(limits.budget_window, self.minted_at, middle)


class Alert(msgspec.Struct, frozen=True):
    """As the ledger has it. Money: nUSD. Times: Unix seconds."""

    alert_id: str
    scope_id: str
    threshold: int
    """percent"""
    since: float
    """when the window began; 0: with the scope"""
    spent_usd: int
    """when it was noticed"""
    budget_usd: int
    created_at: float
    state: str
    tries: int
    next_at: float
    last_error: str | None


def subjects(engine: Engine, scope_ids: Collection[str]) -> dict[str, Subject]:
    """Those of these that there are. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return {one.scope_id: one for ids in batches(scope_ids, IDS_MAX) for one in _subjects(connection, ids)}


def passed(engine: Engine, standings: Iterable[CounterState], now: float) -> list[Alert]:
    """The thresholds that these gates have passed in the window of `now`, by what is spent: what is held may yet be
    given back. Raises LedgerUnavailable."""
    spent = {one.gate_id: one for one in standings if one.spent}
    return [
        alert
        for subject in subjects(engine, spent).values()
        for alert in _passed(subject, spent[subject.scope_id], now)
    ]


def notice(engine: Engine, found: Sequence[Alert]) -> list[Alert]:
    """Put down those that nobody has noticed yet; → these. Raises LedgerUnavailable."""
    known = select(_COLUMNS.alert_id).where(_COLUMNS.alert_id.in_(bindparam("ids", expanding=True)))
    with reading(engine) as connection:
        ids = batches([one.alert_id for one in found], IDS_MAX)
        there = {one for some in ids for one in connection.execute(known, {"ids": some}).scalars()}
    new = sorted((one for one in found if one.alert_id not in there), key=lambda one: one.alert_id)
    if not new:
        return []
    with writing(engine) as connection:
        insert = postgresql.insert if is_shared(connection) else sqlite.insert
        statement = insert(budget_alerts).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
        return [one for one in new if connection.execute(statement, structs.asdict(one)).rowcount == 1]


def claim(engine: Engine, now: float, limit: int) -> list[Alert]:
    """Open alerts whose time has come, oldest first, which nobody else gets for CLAIM_S. Raises LedgerUnavailable."""
    due = select(budget_alerts).where(_COLUMNS.state == OPEN, _COLUMNS.next_at <= now).order_by(_COLUMNS.next_at)
    with reading(engine) as connection:
        found = [Alert(*row) for row in connection.execute(due.limit(limit))]
    if not found:
        return []
    claimed = [structs.replace(one, next_at=now + CLAIM_S, tries=one.tries + 1) for one in found]
    with writing(engine) as connection:
        pairs = zip(found, claimed, strict=True)
        return [mine for one, mine in pairs if _moved(connection, one, next_at=mine.next_at, tries=mine.tries)]


def told(engine: Engine, alert: Alert) -> None:
    """It has arrived. Raises LedgerUnavailable: then it will arrive once more."""
    mine = (_COLUMNS.alert_id == alert.alert_id) & (_COLUMNS.state != SENT)
    with writing(engine) as connection:
        connection.execute(update(budget_alerts).where(mine).values(state=SENT, last_error=None))


def untold(engine: Engine, alert: Alert, why: str, now: float) -> str:
    """It could not be told by whoever claimed it: later, or no more. → its state. Raises LedgerUnavailable."""
    wait_s = min(RETRY_S_MIN * 2.0 ** min(alert.tries - 1, 20), RETRY_S_MAX)
    state = OPEN if now + wait_s < alert.created_at + GIVE_UP_S else GIVEN_UP
    with writing(engine) as connection:
        _moved(connection, alert, state=state, next_at=now + wait_s, last_error=why[:_ERROR_CHARS_MAX])
    return state


def history(engine: Engine) -> list[Alert]:
    """Every alert, oldest first. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        rows = connection.execute(select(budget_alerts).order_by(_COLUMNS.created_at, _COLUMNS.alert_id))
        return [Alert(*row) for row in rows]


def _moved(connection: Connection, alert: Alert, **values: Any) -> bool:
    """Change it if it is still as it was read; False: somebody else was faster."""
    as_read = (_COLUMNS.alert_id == alert.alert_id) & (_COLUMNS.state == OPEN) & (_COLUMNS.next_at == alert.next_at)
    return connection.execute(update(budget_alerts).where(as_read).values(values)).rowcount == 1


def _subjects(connection: Connection, scope_ids: Collection[str]) -> Iterator[Subject]:
    keys, levels = api_keys.c, accounts.c
    for query in (
        select(keys.key_id, literal(KEY), keys.alias, keys.limits, keys.created_at).where(keys.key_id.in_(scope_ids)),
        select(levels.account_id, levels.kind, levels.name, levels.limits, levels.created_at).where(
            levels.account_id.in_(scope_ids)
        ),
    ):
        for scope_id, kind, name, limits, minted_at in connection.execute(query):
            yield Subject(scope_id, kind, name, limits_of(limits), minted_at)


def _passed(subject: Subject, standing: CounterState, now: float) -> Iterator[Alert]:
    limits, spent = subject.limits, standing.spent or 0
    if limits.budget_usd is None:
        return
    since = window_start(limits.budget_window, subject.minted_at, now)
    if abs(since - standing.since) > _SAME_S:  # of another window: nobody can do anything about it any more
        return
    for threshold in THRESHOLDS:
        if 100 * spent >= threshold * limits.budget_usd:
            yield Alert(
                alert_id=_alert_id(subject.scope_id, since, threshold, limits.budget_usd),
                scope_id=subject.scope_id,
                threshold=threshold,
                since=since,
                spent_usd=spent,
                budget_usd=limits.budget_usd,
                created_at=now,
                state=OPEN,
                tries=0,
                next_at=now,
                last_error=None,
            )


def _alert_id(scope_id: str, since: float, threshold: int, budget_nusd: int) -> str:
    """The same wherever it is noticed."""
    text = f"{scope_id}\n{round(since * 1e6)}\n{threshold}\n{budget_nusd}"
    return f"alert_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
