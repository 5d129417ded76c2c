"""The check of grants: the amounts that were granted, burned and expired, against the entries.

Invariant: the burned amounts are computed again from the entries, as defined in proxy/billing/grants.py. The amounts
that archived entries have burned are used as stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from msgspec import structs
from sqlalchemy import Connection, and_, case, exists, func, literal, or_, select, tuple_

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import EntryKind
from proxy.billing.grants import GrantState, MoveKind
from proxy.ledger.amounts import nusd, rows_of
from proxy.ledger.archive.archives import archived_until, not_archived
from proxy.ledger.grants.burning import Burning, charges, has_any, has_grants, settled_between
from proxy.ledger.grants.rows import read_states
from proxy.ledger.schema.account_tables import grant_clock, grant_moves, grants
from proxy.ledger.schema.partitions import first_id
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.spend import batches
from proxy.ledger.settling.sum_clocks import added_until
from proxy.reconciliation.check_entries import IS_CREDIT
from proxy.reconciliation.integrity import CheckResult, CheckScope, settled

# Entries in memory at a time.
PAGE_ENTRIES = 2_000

# After every id of an entry.
_LAST = "~"

_ENTRIES, _GRANTS, _MOVES = ledger_entries.c, grants.c, grant_moves.c
_GRANT_ID = _ENTRIES.details[detail_name(EntryDetails.grant)].as_string()


def grants_add_up(connection: Connection, scope: CheckScope) -> CheckResult:
    """The amounts of a grant are the sums of its moves; granted and expired amounts are entries; burned amounts follow
    from the charges. Cheap without grants."""
    result = CheckResult()
    if has_any(connection):
        _check_amounts(connection, result)
        _check_entries(connection, scope, result)
        _check_burns(connection, scope, result)
    return result


def _check_amounts(connection: Connection, result: CheckResult) -> None:
    sums = {
        kind: func.coalesce(func.sum(case((_MOVES.kind == kind, _MOVES.amount_nusd), else_=0)), 0) for kind in MoveKind
    }
    joined = grants.outerjoin(grant_moves, _MOVES.grant_id == _GRANTS.grant_id)
    columns = {kind: _GRANTS[f"{kind}_nusd"] for kind in MoveKind}
    different = [sums[kind] != columns[kind] for kind in MoveKind]
    burned = _GRANTS.burned_nusd
    wrong = or_(*different, burned < 0, burned > _GRANTS.amount_nusd)
    query = select(_GRANTS.grant_id, *(columns[kind] for kind in MoveKind)).select_from(joined)
    for row in rows_of(connection, query.group_by(_GRANTS.grant_id).having(wrong)):
        result.differs(**row._asdict(), wrong="the amounts are not the sums of the moves")


def _check_entries(connection: Connection, scope: CheckScope, result: CheckResult) -> None:
    signed = case((_MOVES.kind == MoveKind.GRANTED, -_MOVES.amount_nusd), else_=_MOVES.amount_nusd)
    of_move = and_(_ENTRIES.exchange_id == _MOVES.exchange_id, _ENTRIES.kind == EntryKind.CREDIT)
    joined = grant_moves.join(grants, _GRANTS.grant_id == _MOVES.grant_id).outerjoin(ledger_entries, of_move)
    wrong = or_(
        _ENTRIES.entry_id.is_(None),
        _ENTRIES.key_id != _GRANTS.scope_id,
        nusd("charge_usd", connection.dialect) != signed,
        func.coalesce(_GRANT_ID, "") != _MOVES.grant_id,
    )
    month = archived_until(connection)
    query = select(_MOVES.grant_id, _MOVES.entry_id).select_from(joined).where(_MOVES.kind != MoveKind.BURNED, wrong)
    if month is not None:
        query = query.where(_MOVES.exchange_id >= first_id(month.end))
    if scope.since is not None:
        query = query.where(_MOVES.settled_at >= scope.since)
    for row in rows_of(connection, query):
        result.differs(**row._asdict(), wrong="no entry has moved this amount of the grant")
    has_move = exists(select(_MOVES.entry_id).where(_MOVES.exchange_id == _ENTRIES.exchange_id))
    others = select(_ENTRIES.exchange_id, _ENTRIES.key_id).where(*IS_CREDIT, _GRANT_ID.is_not(None), ~has_move)
    for row in rows_of(connection, settled(others, scope).where(not_archived(connection))):
        result.differs(**row._asdict(), wrong="the entry of a grant is not in its amounts")


def _check_burns(connection: Connection, scope: CheckScope, result: CheckResult) -> None:
    after, until = _first(connection, scope), added_until(connection, grant_clock)

    def states_of(scope_ids: Collection[str]) -> Iterable[GrantState]:
        states = read_states(connection, _GRANTS.scope_id.in_(scope_ids))
        before = dict(_burned_before(connection, [one.grant.grant_id for one in states], after))
        return [structs.replace(one, burned=before.get(one.grant.grant_id, 0)) for one in states]

    burning = Burning(connection, states_of)
    rows = rows_of(connection, charges(connection, settled_between(after, until), has_grants()))
    low = after, _LAST
    for page in chain(batches(rows, PAGE_ENTRIES), [None]):
        high = (until, _LAST) if page is None else (page[-1].settled_at, page[-1].entry_id)
        computed = {(one.grant_id, one.charge.entry_id): one.nusd for one in burning.add(page or ())}
        burning.forget_exchanges()
        stored = dict(_stored(connection, low, high))
        for grant_id, entry_id in sorted(computed.keys() | stored.keys()):
            is_, should_be = stored.get((grant_id, entry_id), 0), computed.get((grant_id, entry_id), 0)
            if is_ != should_be:
                result.differs(grant_id=grant_id, entry_id=entry_id, burned_usd=is_, recomputed_usd=should_be)
        low = high


def _first(connection: Connection, scope: CheckScope) -> float:
    """The time from which burns can be computed again, in Unix seconds: some charges until then are archived, or are
    not to be checked."""
    month, after = archived_until(connection), 0.0 if scope.since is None else scope.since - 1e-6
    if month is None:
        return after
    archived = _MOVES.kind == MoveKind.BURNED, _MOVES.exchange_id < first_id(month.end)
    last = connection.execute(select(func.max(_MOVES.settled_at)).where(*archived)).scalar()
    return max(after, last or 0.0)


def _burned_before(connection: Connection, grant_ids: Collection[str], until: float) -> Iterator[tuple[str, int]]:
    total = select(_MOVES.grant_id, func.sum(_MOVES.amount_nusd)).where(
        _MOVES.grant_id.in_(grant_ids), _MOVES.kind == MoveKind.BURNED, _MOVES.settled_at <= until
    )
    for grant_id, amount in connection.execute(total.group_by(_MOVES.grant_id)):
        yield grant_id, int(amount)


def _stored(
    connection: Connection, low: tuple[float, str], high: tuple[float, str]
) -> Iterator[tuple[tuple[str, str], int]]:
    """The burns of the entries after `low`, until `high`: settlement time and entry id."""
    order = tuple_(_MOVES.settled_at, _MOVES.entry_id)
    low_, high_ = (tuple_(literal(at, _MOVES.settled_at.type), literal(entry_id)) for at, entry_id in (low, high))
    query = select(_MOVES.grant_id, _MOVES.entry_id, _MOVES.amount_nusd)
    for grant_id, entry_id, amount in connection.execute(
        query.where(_MOVES.kind == MoveKind.BURNED, order > low_, order <= high_)
    ):
        yield (grant_id, entry_id), amount
