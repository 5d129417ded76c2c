"""The checks of arrivals: journal records, dead letters, the queue and leases. Each check only reads.

Invariant: a journal numbers its records without gaps within an epoch, and a receipt has node and number. So a gap is a
lost record, unless it is recent enough to be in flight or still in the queue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, func, literal_column, or_, select

from proxy.billing.entries import EntryKind
from proxy.ledger.amounts import rows_of
from proxy.ledger.schema.tables import archived_receipts, dead_letters, ledger_clock, ledger_entries
from proxy.ledger.settling.settling import OPEN
from proxy.ledger.settling.spend import batches
from proxy.reconciliation.integrity import CheckResult, CheckScope, RecordsInFlight

# A seq is epoch * 2**40 + count; the first count of an epoch is 1.
EPOCH_BITS = 40

# Ids per statement: far below both databases' limits on parameters.
_IDS_AT_ONCE = 500

CONFLICT = "conflict"
"""the beginning of the reason of a dead letter whose identity has another content in the ledger"""


class Journals:
    """Finds gaps in the sequence numbers of every journal."""

    def __init__(self, connection: Connection, scope: CheckScope, queued: Collection[tuple[str, int]]) -> None:
        self._connection = connection
        self._scope = scope
        self._queued: dict[str, list[int]] = {}
        for node, seq in sorted(queued):
            self._queued.setdefault(node, []).append(seq)
        self._horizons: dict[tuple[str, int], int] = {}

    def find(self) -> CheckResult:
        """Each closed journal record is one entry or a dead letter, archived ones included."""
        result = CheckResult()
        for node, seq, before in self._all_jumps():
            if before == seq:
                result.differs(node=node, journal_seq=seq, wrong="two entries have this receipt")
                continue
            first = (seq >> EPOCH_BITS << EPOCH_BITS) + 1
            if before is None or before < first:
                before = self._below(node, first, seq)
            for low, high in self._missing(node, before + 1, seq - 1):
                self._count(result, node, low, high)
        return result

    def _all_jumps(self) -> Iterator[Any]:
        since = self._scope.since
        spans: Iterable[Any] = [(None, 0, 0)] if since is None else self._connection.execute(_spans(since)).all()
        for node, low, high in spans:
            yield from rows_of(self._connection, _jumps(node, low, high))

    def _count(self, result: CheckResult, node: str, low: int, high: int) -> None:
        """Count the gap `low` to `high` (both included) as records in flight or as lost."""
        queued = self._queued.get(node, [])
        queued = queued[bisect_left(queued, low) : bisect_right(queued, high)]
        result.in_flight += len(queued)
        for start, end in _gaps(queued, low, high):
            if end < self._horizon(node, end >> EPOCH_BITS):
                result.differs(end - start + 1, node=node, journal_seq=start, to=end, wrong="is lost")
            else:
                result.in_flight += end - start + 1

    def _horizon(self, node: str, epoch: int) -> int:
        """The highest seq that arrived before the grace time. Missing seqs below it are older than that."""
        if (node, epoch) not in self._horizons:
            cutoff = self._scope.now - self._scope.grace_s
            arrived = [(ledger_entries, ledger_entries.c.settled_at), (dead_letters, dead_letters.c.first_seen)]
            highest = [
                self._connection.execute(_highest(table, node, epoch).where(at < cutoff)).scalar() or 0
                for table, at in arrived
            ]
            self._horizons[node, epoch] = max(highest)
        return self._horizons[node, epoch]

    def _below(self, node: str, first: int, seq: int) -> int:
        """The highest seq of this epoch below `seq` with an entry, or else `first` - 1."""
        if self._scope.since is None or seq == first:
            return first - 1
        query = _highest(ledger_entries, node, seq >> EPOCH_BITS).where(ledger_entries.c.journal_seq < seq)
        return int(self._connection.execute(query).scalar() or first - 1)

    def _missing(self, node: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The ranges within low..high (both included) of neither a dead letter nor an archived receipt."""
        for start, end in _gaps(self._dead_letters(node, low, high), low, high):
            for first, last in self._archived(node, start, end):
                if start < first:
                    yield start, first - 1
                start = last + 1
            if start <= end:
                yield start, end

    def _archived(self, node: str, low: int, high: int) -> Sequence[Any]:
        """The ranges of archived receipts that overlap low..high, in order."""
        first, last = archived_receipts.c.first_seq, archived_receipts.c.last_seq
        query = select(first, last).where(archived_receipts.c.node == node, first <= high, last >= low)
        return self._connection.execute(query.order_by(first)).all()

    def _dead_letters(self, node: str, low: int, high: int) -> list[int]:
        """The seqs of dead letters from `low` to `high`, in order."""
        if high < low:
            return []
        seq = dead_letters.c.journal_seq
        query = select(seq).where(dead_letters.c.node == node, seq.between(low, high)).distinct().order_by(seq)
        return list(self._connection.execute(query).scalars())


def _highest(table: Table, node: str, epoch: int) -> Select[Any]:
    seq = table.c.journal_seq
    return select(func.max(seq)).where(table.c.node == node, seq > epoch << EPOCH_BITS, seq < (epoch + 1) << EPOCH_BITS)


def _jumps(node: str | None, low: int, high: int) -> Select[Any]:
    """(node, seq, previous seq) wherever the two are not consecutive; the previous seq of a node's first is None.

    Only this node's entries with seqs from `low` to `high`; None: all entries.
    """
    entries = ledger_entries.c
    before = func.lag(entries.journal_seq).over(partition_by=entries.node, order_by=entries.journal_seq)
    within: ColumnElement[bool] = entries.node.is_not(None)
    if node is not None:
        within = (entries.node == node) & entries.journal_seq.between(low, high)
    numbered = select(entries.node, entries.journal_seq, before.label("before")).where(within).subquery().c
    return select(numbered.node, numbered.journal_seq, numbered.before).where(
        or_(numbered.before.is_(None), numbered.journal_seq - numbered.before != 1)
    )


def _spans(since: float) -> Select[Any]:
    """(node, lowest seq, highest seq) of each epoch with entries settled since then."""
    entries = ledger_entries.c
    epoch = entries.journal_seq.op(">>")(literal_column(str(EPOCH_BITS)))
    ends = func.min(entries.journal_seq), func.max(entries.journal_seq)
    # Written this way, SQLite uses the index on the time, which selects few rows, and not that on the nodes.
    settled = entries.settled_at >= since, entries.journal_seq.is_not(None)
    return select(entries.node, *ends).where(*settled).group_by(epoch, entries.node)


def _gaps(present: Sequence[int], low: int, high: int) -> Iterator[tuple[int, int]]:
    """The ranges of low..high (both included) without `present`, which is sorted and within low..high."""
    for one in present:
        if low < one:
            yield low, one - 1
        low = one + 1
    if low <= high:
        yield low, high


def clock_is_ahead(connection: Connection, _scope: CheckScope) -> CheckResult:
    """No entry has a `settled_at` later than the ledger's clock; a follower would miss it."""
    result = CheckResult()
    clock = connection.execute(select(func.max(ledger_clock.c.settled_at))).scalar()
    if clock is None:
        result.differs(wrong="the row of ledger_clock is missing")
        return result
    entries = ledger_entries.c
    for row in rows_of(connection, select(entries.entry_id, entries.settled_at).where(entries.settled_at > clock)):
        result.differs(entry_id=row.entry_id, settled_at=row.settled_at)
    return result


def open_dead_letters(connection: Connection, *, conflicts: bool) -> CheckResult:
    """No dead letter is open; `conflicts`: only dead letters of conflicts, else only the others."""
    letters = dead_letters.c
    is_conflict = letters.reason.startswith(CONFLICT)
    query = select(letters.id, letters.reason, letters.exchange_id, letters.times_seen).where(
        letters.state == OPEN, is_conflict if conflicts else ~is_conflict
    )
    result = CheckResult()
    for row in rows_of(connection, query.order_by(letters.first_seen)):
        result.differs(**row._asdict())
    return result


def queue_moves(scope: CheckScope, in_flight: RecordsInFlight) -> CheckResult:
    """The oldest record in the queue is not older than the grace time."""
    result = CheckResult(in_flight=len(in_flight.queued))
    if in_flight.oldest_age_s is not None and in_flight.oldest_age_s > scope.grace_s:
        result.differs(oldest_age_s=round(in_flight.oldest_age_s, 1))
    return result


def leases_end(connection: Connection, scope: CheckScope, leased: Mapping[str, Collection[str]]) -> CheckResult:
    """No node has a lease on an exchange that was settled before the grace time."""
    entries = ledger_entries.c
    result = CheckResult()
    for node, exchange_ids in leased.items():
        for chunk in batches(exchange_ids, _IDS_AT_ONCE):
            over = select(entries.exchange_id).where(
                entries.exchange_id.in_(chunk),
                entries.kind == EntryKind.USAGE,
                entries.settled_at < scope.now - scope.grace_s,
            )
            for row in connection.execute(over):
                result.differs(node=node, exchange_id=row.exchange_id)
    return result
