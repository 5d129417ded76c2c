"""Budget alerts: detection of reached thresholds, and the delivery queue in the ledger's database.

Invariants: A scope, a window, a budget and a threshold make one alert, no matter which node detects it, and how often.
An alert is delivered at least once, or abandoned after a day. A sender claims an alert first, by moving the time of its
next attempt: if the sender dies, another one retries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, Engine, bindparam, delete, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.dimensions import NO_DIMENSIONS, Dimensions
from proxy.billing.limit_rules import dimensions_of, rule_of
from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from proxy.billing.reservation import CounterState
from proxy.ledger.limit_rules import rules_with_ids
from proxy.ledger.limits import limits_of
from proxy.ledger.schema.account_tables import accounts, api_keys, budget_alerts
from proxy.ledger.settling.spend import IDS_MAX, batches
from proxy.storage.database import is_shared, reading, writing

THRESHOLDS = (50, 80, 100)
"""in percent of a budget"""

LOW_BALANCE = 0
"""stored instead of a threshold if a prepaid balance is low, see low_balance.py"""

OPEN, SENT, GIVEN_UP = "open", "sent", "given_up"
"""states of an alert: to be delivered; delivered; abandoned"""

RETRY_S_MIN, RETRY_S_MAX = 10.0, 3_600.0
GIVE_UP_S = 86_400.0

# Longer than any delivery attempt. An alert of a dead sender waits this long.
CLAIM_S = 60.0

# Window starts closer together than this are equal: windows are longer than a second.
_SAME_S = 0.001
_ERROR_CHARS_MAX = 200
_COLUMNS = budget_alerts.c

KEY, RULE = "key", "rule"
"""the kinds of subjects that are no accounts"""


class Subject(msgspec.Struct, frozen=True):
    """The owner of a budget."""

    scope_id: str
    kind: str
    """key, project, organization or rule"""
    name: str
    """name or alias; all counters of a rule have its name"""
    limits: Limits
    created_at: float
    dimensions: Dimensions = NO_DIMENSIONS
    """dimension → value id, which all requests of the counter share; empty except for a counter of a rule"""

    def window_end(self, since: float) -> float | None:
        """End of the window that began at `since`; None: never, or the current limits have no such window."""
        limits = self.limits
        middle = since + 2 * _SAME_S  # safely inside the window, despite rounding
        if abs(limits.window_start(self.created_at, middle) - since) > _SAME_S:
            return None
        return limits.window_end(self.created_at, middle)


class Alert(msgspec.Struct, frozen=True):
    """A row of `budget_alerts`. Money: nUSD. Times: Unix seconds."""

    alert_id: str
    scope_id: str
    threshold: int
    """percent, or LOW_BALANCE"""
    since: float
    """start of the window; 0: lifetime. For a low balance: the time of detection"""
    spent_nusd: Nusd
    """spend at the time of detection; for a low balance: spend less credit"""
    budget_nusd: Nusd
    """the budget; for a low balance: the amount below which the balance is low"""
    created_at: float
    state: str
    tries: int
    next_at: float
    last_error: str | None


def subjects(engine: Engine, scope_ids: Collection[str]) -> dict[str, Subject]:
    """The existing keys and accounts with these ids, and the rules of these counters. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return {one.scope_id: one for ids in batches(scope_ids, IDS_MAX) for one in _subjects(connection, ids)}


def reached(engine: Engine, states: Iterable[CounterState], now: float) -> list[Alert]:
    """Alerts for the thresholds that the spend of these counters has reached in the current window. Reservations do not
    count: they may be released. Raises LedgerUnavailable."""
    spent = {one.counter_id: one for one in states if one.spent}
    return [
        alert
        for subject in subjects(engine, spent).values()
        for alert in _reached(subject, spent[subject.scope_id], now)
    ]


def record_new(engine: Engine, alerts: Sequence[Alert]) -> list[Alert]:
    """Insert the alerts that are not recorded yet, and return them. Raises LedgerUnavailable."""
    known = select(_COLUMNS.alert_id).where(_COLUMNS.alert_id.in_(bindparam("ids", expanding=True)))
    with reading(engine) as connection:
        ids = batches([one.alert_id for one in alerts], IDS_MAX)
        recorded = {one for some in ids for one in connection.execute(known, {"ids": some}).scalars()}
    new = sorted((one for one in alerts if one.alert_id not in recorded), key=lambda one: one.alert_id)
    if not new:
        return []
    with writing(engine) as connection:
        insert = postgresql.insert if is_shared(connection) else sqlite.insert
        statement = insert(budget_alerts).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
        return [one for one in new if connection.execute(statement, structs.asdict(one)).rowcount == 1]


def claim(engine: Engine, now: float, limit: int) -> list[Alert]:
    """Claim up to `limit` due alerts, the longest due first, for CLAIM_S. Raises LedgerUnavailable."""
    due = select(budget_alerts).where(_COLUMNS.state == OPEN, _COLUMNS.next_at <= now).order_by(_COLUMNS.next_at)
    with reading(engine) as connection:
        alerts = [Alert(*row) for row in connection.execute(due.limit(limit))]
    if not alerts:
        return []
    claimed = [structs.replace(one, next_at=now + CLAIM_S, tries=one.tries + 1) for one in alerts]
    with writing(engine) as connection:
        pairs = zip(alerts, claimed, strict=True)
        return [new for old, new in pairs if _updated(connection, old, next_at=new.next_at, tries=new.tries)]


def mark_sent(engine: Engine, alert: Alert) -> None:
    """Record the delivery. Raises LedgerUnavailable: then the alert will be delivered again."""
    unsent = (_COLUMNS.alert_id == alert.alert_id) & (_COLUMNS.state != SENT)
    with writing(engine) as connection:
        connection.execute(update(budget_alerts).where(unsent).values(state=SENT, last_error=None))


def mark_failed(engine: Engine, alert: Alert, why: str, now: float) -> str:
    """Record a failed delivery of a claimed alert: it is retried later, or abandoned. Returns its state.
    Raises LedgerUnavailable."""
    wait_s = min(RETRY_S_MIN * 2.0 ** min(alert.tries - 1, 20), RETRY_S_MAX)
    state = OPEN if now + wait_s < alert.created_at + GIVE_UP_S else GIVEN_UP
    with writing(engine) as connection:
        _updated(connection, alert, state=state, next_at=now + wait_s, last_error=why[:_ERROR_CHARS_MAX])
    return state


def end_wait(engine: Engine, now: float) -> None:
    """Make alerts due that wait after failures, except those that a sender may be delivering. Raises
    LedgerUnavailable."""
    waiting = (_COLUMNS.state == OPEN) & (_COLUMNS.next_at > now + CLAIM_S)
    with writing(engine) as connection:
        connection.execute(update(budget_alerts).where(waiting).values(next_at=now))


def forget(engine: Engine, before: float, now: float) -> int:
    """Delete the alerts created before `before` (Unix seconds) that are sent or abandoned, and return their number.
    Alerts of the current window and of balances that are still low stay, so that none is reported twice. Raises
    LedgerUnavailable."""
    over = (_COLUMNS.created_at < before, _COLUMNS.state != OPEN, _COLUMNS.threshold != LOW_BALANCE)
    query = select(_COLUMNS.alert_id, _COLUMNS.scope_id, _COLUMNS.since).where(*over)
    with reading(engine) as connection:
        old = connection.execute(query).all()
    forgotten = 0
    for some in batches(old, IDS_MAX):
        owners = subjects(engine, {one.scope_id for one in some})
        ids = [one.alert_id for one in some if not _is_present(owners.get(one.scope_id), one.since, now)]
        with writing(engine) as connection:
            forgotten += connection.execute(delete(budget_alerts).where(_COLUMNS.alert_id.in_(ids))).rowcount
    return forgotten


def _is_present(subject: Subject | None, since: float, now: float) -> bool:
    if subject is None:
        return False
    return abs(subject.limits.window_start(subject.created_at, now) - since) <= _SAME_S


def _updated(connection: Connection, alert: Alert, **values: Any) -> bool:
    """Update the row unless it changed since `alert` was read; False: another sender changed it."""
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
        for scope_id, kind, name, limits, created_at in connection.execute(query):
            yield Subject(scope_id, kind, name, limits_of(limits), created_at)
    rule_ids = {one: rule_id for one in scope_ids if (rule_id := rule_of(one)) is not None}
    rules = rules_with_ids(connection, set(rule_ids.values()))
    for counter_id, rule_id in rule_ids.items():
        rule = rules.get(rule_id)
        if rule is not None and rule.deleted_at is None:
            of_counter = dimensions_of(rule, counter_id)
            yield Subject(counter_id, RULE, rule.name, rule.limits, rule.created_at, of_counter)


def _reached(subject: Subject, counter: CounterState, now: float) -> Iterator[Alert]:
    limits, spent = subject.limits, counter.spent or 0
    budget = limits.budget_at(now)
    if budget is None:
        return
    since = limits.window_start(subject.created_at, now)
    if abs(since - counter.since) > _SAME_S:  # of an earlier window: an alert would be useless
        return
    for threshold in limits.thresholds or THRESHOLDS:
        if 100 * spent >= threshold * budget:
            yield Alert(
                alert_id=_alert_id(subject.scope_id, since, threshold, budget),
                scope_id=subject.scope_id,
                threshold=threshold,
                since=since,
                spent_nusd=Nusd(spent),
                budget_nusd=budget,
                created_at=now,
                state=OPEN,
                tries=0,
                next_at=now,
                last_error=None,
            )


def _alert_id(scope_id: str, since: float, threshold: int, budget_nusd: Nusd) -> str:
    """The id of an alert, equal on every node."""
    text = f"{scope_id}\n{round(since * 1e6)}\n{threshold}\n{budget_nusd}"
    return f"alert_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
