"""The keys' batches, and the node that polls the provider of each.

Invariants: a batch is stored before it is requested from its provider, and until long after its lines are settled. A
claim only saves work: two nodes that settle one batch settle each line once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Engine, and_, delete, exc, func, or_, select, update

from proxy.billing.batch import UNFINISHED, BatchState, StoredBatch, StoredFile, Terms
from proxy.billing.keys import ApiKey
from proxy.ledger.schema.tables import stored_batches, stored_files
from proxy.ledger.stored_objects.files import add_file
from proxy.ledger.stored_objects.pages import owned, page
from proxy.metering.stored_objects.api import PageAsked
from proxy.storage.database import reading, writing

_BATCHES = stored_batches.c
_FIELDS = StoredBatch.__struct_fields__
_ROW = [_BATCHES[name] for name in _FIELDS]
_UNFINISHED = _BATCHES.state.in_([state.value for state in UNFINISHED])


class BatchStore:
    """Stores batches. Every method raises LedgerUnavailable. Times: Unix seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(
        self, batch: StoredBatch, terms: Sequence[Terms], *, node: str, next_at: float, unfinished_max: int
    ) -> bool:
        """Store a batch, to be polled by `node`. False, without effect, if the key has `unfinished_max` unsettled
        batches."""
        row = msgspec.structs.asdict(batch) | {
            "state": batch.state.value,
            "files": list(batch.files),
            "terms": msgspec.to_builtins(tuple(terms)),
            "next_at": next_at,
            "claimed_by": node,
        }
        with writing(self._engine) as connection:
            others = (
                select(func.count()).select_from(stored_batches).where(_BATCHES.key_id == batch.key_id, _UNFINISHED)
            )
            if connection.execute(others).scalar_one() >= unfinished_max:
                return False
            connection.execute(stored_batches.insert().values(row))
        return True

    def find(self, batch_id: str) -> StoredBatch | None:
        """The batch with this id of the provider."""
        return self._one(_BATCHES.batch_id == batch_id)

    def of_exchange(self, exchange_id: str) -> StoredBatch | None:
        """The batch with this exchange id."""
        return self._one(_BATCHES.exchange_id == exchange_id)

    def terms(self, exchange_id: str) -> tuple[Terms, ...]:
        """The prices of the batch's lines; empty if the batch was deleted."""
        query = select(_BATCHES.terms).where(_BATCHES.exchange_id == exchange_id)
        with reading(self._engine) as connection:
            found = connection.execute(query).scalar_one_or_none()
            return () if found is None else msgspec.convert(found, tuple[Terms, ...])

    def page(self, api: str, key: ApiKey, asked: PageAsked) -> tuple[list[StoredBatch], bool]:
        """A page of the key's batches, and True if there are more. Raises UnknownCursorError."""
        shown = and_(_BATCHES.api == api, owned(stored_batches, key), _BATCHES.batch_id.is_not(None))
        with reading(self._engine) as connection:
            rows, more = page(connection, _ROW, _BATCHES.batch_id, shown, asked)
        return [_batch(row) for row in rows], more

    def known(self, batch_ids: Collection[str]) -> set[str]:
        """The ids among these that belong to a key."""
        with reading(self._engine) as connection:
            query = select(_BATCHES.batch_id).where(_BATCHES.batch_id.in_(list(batch_ids)))
            return set(connection.execute(query).scalars())

    def made(self, exchange_id: str, batch_id: str, *, next_at: float) -> bool:
        """Record the provider's id of a new batch. False, without effect: another batch has the id, or this one is not
        being created."""
        running = BatchState.RUNNING.value
        values = {"state": running, "batch_id": batch_id, "next_at": next_at}
        try:
            return self._change(exchange_id, BatchState.CREATING, values)
        except exc.IntegrityError:
            return False

    def ended(self, batch: StoredBatch, files: Sequence[StoredFile]) -> None:
        """Record that the batch has ended, with results in these files. Idempotent."""
        with writing(self._engine) as connection:
            here = _BATCHES.exchange_id == batch.exchange_id
            changed = update(stored_batches).where(here).values(files=[file.file_id for file in files])
            connection.execute(changed)
            for file in files:
                add_file(connection, file)

    def close(self, exchange_id: str, state: BatchState) -> None:
        """Record that the batch is settled or lost. Idempotent."""
        with writing(self._engine) as connection:
            here = and_(_BATCHES.exchange_id == exchange_id, _UNFINISHED)
            connection.execute(update(stored_batches).where(here).values(state=state.value, claimed_by=None))

    def forget(self, exchange_id: str) -> None:
        """Delete a batch that its provider refused, or that was deleted there."""
        with writing(self._engine) as connection:
            connection.execute(delete(stored_batches).where(_BATCHES.exchange_id == exchange_id))

    def claim(self, node: str, *, now: float, for_s: float, limit: int) -> list[StoredBatch]:
        """The batches that this node has to poll now, the longest overdue first: its own, and those of nodes that have
        stopped polling."""
        free = or_(_BATCHES.claimed_by == node, _BATCHES.next_at <= now - for_s)
        due = and_(_UNFINISHED, _BATCHES.next_at <= now, free)
        with reading(self._engine) as connection:
            ids = select(_BATCHES.exchange_id).where(due).order_by(_BATCHES.next_at).limit(limit)
            found = connection.execute(ids).scalars().all()
        if not found:
            return []
        with writing(self._engine) as connection:
            query = update(stored_batches).where(due, _BATCHES.exchange_id.in_(found))
            mine = {"claimed_by": node, "next_at": now + for_s}
            return [_batch(row) for row in connection.execute(query.values(mine).returning(*_ROW))]

    def postpone(self, exchange_id: str, next_at: float) -> None:
        """Poll the batch at `next_at`, not before."""
        with writing(self._engine) as connection:
            here = and_(_BATCHES.exchange_id == exchange_id, _UNFINISHED)
            connection.execute(update(stored_batches).where(here).values(next_at=next_at))

    def of_node(self, node: str) -> list[StoredBatch]:
        """The unfinished batches that this node polled last."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(*_ROW).where(_BATCHES.claimed_by == node, _UNFINISHED))
            return [_batch(row) for row in rows]

    def forget_older(self, than: float) -> None:
        """Delete finished batches that were created before this time, and the files with their results."""
        old = and_(_BATCHES.created_at < than, ~_UNFINISHED)
        with writing(self._engine) as connection:
            ids = select(_BATCHES.exchange_id).where(old)
            connection.execute(delete(stored_files).where(stored_files.c.made_by.in_(ids)))
            connection.execute(delete(stored_batches).where(old))

    def _one(self, where: Any) -> StoredBatch | None:
        with reading(self._engine) as connection:
            row = connection.execute(select(*_ROW).where(where)).one_or_none()
            return None if row is None else _batch(row)

    def _change(self, exchange_id: str, state: BatchState, values: dict[str, Any]) -> bool:
        with writing(self._engine) as connection:
            here = and_(_BATCHES.exchange_id == exchange_id, _BATCHES.state == state.value)
            return connection.execute(update(stored_batches).where(here).values(values)).rowcount == 1


def _batch(row: Any) -> StoredBatch:
    values = dict(zip(_FIELDS, row, strict=True))
    return StoredBatch(**values | {"state": BatchState(values["state"]), "files": tuple(values["files"])})
