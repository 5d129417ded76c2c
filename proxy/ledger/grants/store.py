"""Adds, revokes and lists grants, and posts their entries.

Invariants: a grant and its first entry are written in one transaction. Entries are posted in settling transactions,
which exclude each other and also store that they were posted, so an entry is posted once, whichever process posts it,
and however often a process is killed. A scope has no two grants with the same name: a repeated `add` adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement, Connection, Engine, and_, or_, select, text, update

from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.grants import (
    Grant,
    GrantError,
    GrantPosting,
    GrantState,
    MoveKind,
    due_postings,
    posting_exchange_id,
)
from proxy.billing.money import Nusd
from proxy.foundation.names import UnknownNameError
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.archive.archives import archived_until
from proxy.ledger.grants.burning import burn, burn_until, current_states, has_any
from proxy.ledger.grants.rows import Move, begin_due, insert_grants, insert_moves, read_states
from proxy.ledger.schema.account_tables import grant_moves, grants
from proxy.ledger.settling.clock import settled_until
from proxy.ledger.settling.settling import Settling
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.storage.database import reading

# Grants with due entries in one settling transaction: it takes a tenth of a second.
GRANTS_MAX = 100

_GRANTS = grants.c
# As in the index of the table.
_OPEN = text("(granted_nusd = 0 OR granted_nusd - burned_nusd <> expired_nusd)")


class UnknownGrantError(GrantError, UnknownNameError):
    """No grant has this id."""


class GrantStore:
    """Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, ledger: LedgerStore, *, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self._engine, self._ledger, self._clock = engine, ledger, clock

    def add(self, make: Callable[[float], Grant]) -> GrantState:
        """Add a grant, and its entry if it begins at once. `make`: ledger's time, Unix seconds → the grant. Raises
        GrantError."""
        with self._posting() as settling:
            connection, grant = settling.connection, make(settling.now)
            same = select(_GRANTS.grant_id).where(_GRANTS.scope_id == grant.scope_id, _GRANTS.name == grant.name)
            if connection.execute(same.limit(1)).first() is not None:
                raise GrantError(f"name: {grant.scope_name} already has a grant {grant.name!r}")
            insert_grants(connection, [grant])
            _post(settling, read_states(connection, _GRANTS.grant_id == grant.grant_id))
            return _one(connection, grant.grant_id)

    def revoke(self, grant_id: str) -> GrantState:
        """End a grant and its series; the rest is taken back. A grant that has ended stays as it is. Raises
        UnknownGrantError."""
        with self._posting() as settling:
            connection, now = settling.connection, settling.now
            series = _GRANTS.series_id == _one(connection, grant_id).grant.series_id
            states = read_states(connection, series)
            last = max(one.grant.number for one in states)
            ended = [
                one.grant.grant_id
                for one in states
                if one.grant.revoked_at is None
                and (one.grant.ends_at > now or (one.grant.number == last and one.grant.recurs is not None))
            ]
            connection.execute(update(grants).where(_GRANTS.grant_id.in_(ended)).values(revoked_at=now))
            connection.execute(update(grants).where(series).values(next_at=None))
            _post(settling, read_states(connection, series))
            return _one(connection, grant_id)

    def one(self, grant_id: str) -> GrantState:
        """Raises UnknownGrantError."""
        with reading(self._engine) as connection:
            return _one(connection, grant_id)

    def every(self, *scope_ids: str) -> list[GrantState]:
        """The grants of these keys and accounts, in the order in which they burn; without ids, all grants, oldest
        first, with the amounts that are stored as burned."""
        with reading(self._engine) as connection:
            return current_states(connection, *scope_ids) if scope_ids else read_states(connection)

    def post_due(self) -> bool:
        """Burn with all settled entries, and post the entries that are due. Returns True if there may be more.
        Idempotent."""
        with reading(self._engine) as connection:
            if not has_any(connection):
                return False
        self._burn_all()
        with reading(self._engine) as connection:
            if not _is_due(connection, max(self._clock(), settled_until(connection))):
                return False
        with self._posting() as settling:
            due = read_states(settling.connection, _open(settling.now), limit=GRANTS_MAX)
            _post(settling, due)
            return len(due) == GRANTS_MAX

    def _burn_all(self) -> None:
        while burn(self._engine):
            pass

    @contextmanager
    def _posting(self) -> Iterator[Settling]:
        """A settling transaction in which all entries settled before have burned, and all grants that are due have
        begun."""
        self._burn_all()  # in steps, because the transaction keeps others from settling
        with self._ledger.settling() as settling:
            burn_until(settling.connection, settling.now)
            begin_due(settling.connection, settling.now)
            yield settling


def _one(connection: Connection, grant_id: str) -> GrantState:
    found = read_states(connection, _GRANTS.grant_id == grant_id)
    if not found:
        raise UnknownGrantError(f"grant: no grant has the id {grant_id!r}")
    return found[0]


def _open(now: float) -> ColumnElement[bool]:
    """An SQL condition: something is due for the grant at `now` (Unix seconds), after all entries have burned."""
    begins = (_GRANTS.granted_nusd == 0) & (_GRANTS.begins_at <= now)
    is_valid = or_(_GRANTS.revoked_at.is_(None), _GRANTS.revoked_at > _GRANTS.begins_at)
    left = _GRANTS.granted_nusd - _GRANTS.burned_nusd != _GRANTS.expired_nusd
    ended = or_(_GRANTS.expires_at <= now, _GRANTS.revoked_at <= now)
    return and_(_OPEN, (begins & is_valid) | ((_GRANTS.granted_nusd != 0) & left & ended))


def _is_due(connection: Connection, now: float) -> bool:
    due = (select(_GRANTS.grant_id).where(condition).limit(1) for condition in (_open(now), _GRANTS.next_at <= now))
    return any(connection.execute(query).first() is not None for query in due)


def _post(settling: Settling, states: Iterable[GrantState]) -> None:
    """Post the due entries of these grants."""
    postings = [one for state in states for one in due_postings(state, settling.now, settling.now)]
    month = archived_until(settling.connection)
    moves, arrivals = list[Move](), list[Arrival]()
    for one in postings:
        entry = _entry(one, _dated(settling, one, 0.0 if month is None else month.until))
        arrivals.append(Arrival(entry))
        moves.append(
            Move(one.state.grant.grant_id, entry.entry_id, entry.exchange_id, one.kind, settling.now, one.nusd)
        )
    if arrivals:
        settling.insert(arrivals)
        insert_moves(settling.connection, moves)


def _dated(settling: Settling, posting: GrantPosting, archived: float) -> float:
    """The time of the entry, in Unix seconds: that of the grant's beginning or end, or, for a later correction, that of
    the last charge. No entry may begin before `archived`, the end of the last archived month."""
    grant = posting.state.grant
    if posting.kind is MoveKind.GRANTED:
        at = grant.begins_at
    else:
        at = grant.ends_at
        if posting.state.entries > 2:
            of_grant = grant_moves.c.grant_id == grant.grant_id
            last = select(grant_moves.c.settled_at).where(of_grant, grant_moves.c.kind == MoveKind.BURNED)
            at = settling.connection.execute(last.order_by(grant_moves.c.settled_at.desc()).limit(1)).scalar_one()
    return at if at >= archived else settling.now


def _entry(posting: GrantPosting, at: float) -> LedgerEntry:
    grant = posting.state.grant
    what = {
        MoveKind.GRANTED: "",
        MoveKind.EXPIRED: ": revoked" if grant.revoked_at == grant.ends_at else ": expired",
    }[posting.kind]
    nusd = posting.nusd if posting.kind is MoveKind.GRANTED else -posting.nusd
    return credit_entry(
        posting_exchange_id(posting, at),
        grant.scope_id,
        grant.scope_name,
        Nusd(nusd),
        f"grant {grant.name}{what}",
        at,
        EntryDetails(grant=grant.grant_id, grant_move=posting.kind),
    )
