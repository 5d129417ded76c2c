"""The audit log of operators' changes.

Invariants: an operation is recorded before it runs, and is not run if it cannot be recorded; its result is added to
the same entry, once; only archived entries are deleted, and none contains a secret.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Engine, and_, insert, or_, select, update

from proxy.foundation.secret import masked
from proxy.ledger.schema.tables import acts
from proxy.storage.database import LedgerUnavailable, Lock, hold, reading, writing

BEGUN, DONE, REFUSED, FAILED = "begun", "done", "refused", "failed"
# The message of a begun entry that has claimed its target.
CLAIMED = "running"

# Names, aliases and addresses as typed.
TEXT_CHARS_MAX = 256
# Entries in memory at a time.
PAGE_ENTRIES = 500

_log = logging.getLogger(__name__)
_COLUMNS = acts.c


@dataclass(frozen=True, slots=True)
class Actor:
    """An operator, and where the operation came from."""

    name: str
    via: str
    """api or cli"""
    origin: str | None
    """a client address, or a host name"""


@dataclass(slots=True)
class PendingEntry:
    """The entry of a running operation."""

    target: str | None
    """may be set while the operation runs"""
    act_id: str = ""
    """the id of the stored entry"""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A stored entry. Times: Unix seconds."""

    act_id: str
    at: float
    actor: str
    via: str
    origin: str | None
    action: str
    target: str | None
    details: Mapping[str, Any] | None
    result: str
    words: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Selects the entries that meet every condition that is not None."""

    text: str | None = None
    """a part of the actor, the action or the target, in any case"""
    actor: str | None = None
    action: str | None = None
    """`key.block`; or its first part, `key`"""
    target: str | None = None
    result: str | None = None
    since: float | None = None
    """Unix seconds"""
    until: float | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """In SQL."""
        if self.text is not None:
            columns = _COLUMNS.actor, _COLUMNS.action, _COLUMNS.target
            yield or_(*(column.icontains(self.text, autoescape=True) for column in columns))
        if self.action is not None:
            yield or_(_COLUMNS.action == self.action, _COLUMNS.action.startswith(f"{self.action}.", autoescape=True))
        for column, value in ((_COLUMNS.actor, self.actor), (_COLUMNS.target, self.target)):
            if value is not None:
                yield column == value
        if self.result is not None:
            yield _COLUMNS.result == self.result
        if self.since is not None:
            yield _COLUMNS.at >= self.since
        if self.until is not None:
            yield _COLUMNS.at < self.until


EVERY = AuditFilter()


class AuditLog:
    """Records operations and reads their entries. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self._engine = engine
        self._clock = clock

    @contextmanager
    def operation(
        self, by: Actor, action: str, target: str | None, details: Mapping[str, Any] | None
    ) -> Iterator[PendingEntry]:
        """Run an operation inside this context. A ValueError is a refusal: its message is recorded."""
        entry = PendingEntry(target)
        entry_id = entry.act_id = self._begin(by, action, entry, details)
        try:
            yield entry
        except ValueError as refusal:
            self._end(entry_id, by, action, entry, REFUSED, str(refusal))
            raise
        except BaseException as failure:
            self._end(entry_id, by, action, entry, FAILED, type(failure).__name__)
            raise
        self._end(entry_id, by, action, entry, DONE, None)

    def since(self, at: float) -> Iterator[AuditEntry]:
        """The entries at or after `at` (Unix seconds), oldest first, page by page."""
        after = _id(at, "")
        while True:
            query = select(acts).where(_COLUMNS.act_id > after).order_by(_COLUMNS.act_id).limit(PAGE_ENTRIES)
            with reading(self._engine) as connection:
                page = [AuditEntry(*row) for row in connection.execute(query)]
            yield from page
            if len(page) < PAGE_ENTRIES:
                return
            after = page[-1].act_id

    def latest(self, limit: int, before: str | None = None, wanted: AuditFilter = EVERY) -> list[AuditEntry]:
        """The last `limit` of the wanted entries, newest first; `before`: an entry's id, only earlier entries."""
        query = select(acts).where(*wanted.conditions()).order_by(_COLUMNS.act_id.desc()).limit(limit)
        if before is not None:
            query = query.where(_COLUMNS.act_id < before)
        with reading(self._engine) as connection:
            return [AuditEntry(*row) for row in connection.execute(query)]

    def claim(self, entry: PendingEntry, action: str, *, again: bool) -> AuditEntry | None:
        """Claim the target for this running operation; returns the other entry of the action that has claimed it
        before, or is done. Of several operations at the same time, exactly one gets None, whatever clocks say.
        `again`: claim it in any case."""
        is_taken = or_(_COLUMNS.result == DONE, and_(_COLUMNS.result == BEGUN, _COLUMNS.words == CLAIMED))
        others = select(acts).where(
            _COLUMNS.action == action,
            _COLUMNS.target == _short(entry.target),
            _COLUMNS.act_id != entry.act_id,
            is_taken,
        )
        with writing(self._engine) as connection:
            hold(connection, Lock.AUDIT)
            found = connection.execute(others.order_by(_COLUMNS.act_id.desc()).limit(1)).first()
            if found is None or again:
                mine = update(acts).where(_COLUMNS.act_id == entry.act_id)
                connection.execute(mine.values(words=CLAIMED))
        return None if found is None else AuditEntry(*found)

    def latest_of(self, action: str, targets: Collection[str], results: Collection[str]) -> dict[str, AuditEntry]:
        """Target → the last entry of this action with one of the results. Targets without one are left out."""
        query = select(acts).where(
            _COLUMNS.action == action, _COLUMNS.target.in_(targets), _COLUMNS.result.in_(results)
        )  # fmt: skip
        with reading(self._engine) as connection:
            found = [AuditEntry(*row) for row in connection.execute(query.order_by(_COLUMNS.act_id))]
        return {str(one.target): one for one in found}

    def _begin(self, by: Actor, action: str, entry: PendingEntry, details: Mapping[str, Any] | None) -> str:
        now = self._clock()
        entry_id = _id(now, secrets.token_hex(8))
        row = {
            "act_id": entry_id,
            "at": now,
            "actor": _short(by.name),
            "via": by.via,
            "origin": _short(by.origin),
            "action": action,
            "target": _short(entry.target),
            "details": _clean(details) if details else None,
            "result": BEGUN,
            "words": None,
        }
        with writing(self._engine) as connection:
            connection.execute(insert(acts).values(row))
        return entry_id

    def _end(
        self, entry_id: str, by: Actor, action: str, entry: PendingEntry, result: str, message: str | None
    ) -> None:
        """Record the result. Never raises LedgerUnavailable: the operation has run, so its entry stays as begun."""
        target = _short(entry.target)
        _log.info("audit: %s %s by %s (%s, %s): %s", action, target, _short(by.name), by.via, _short(by.origin), result)
        try:
            with writing(self._engine) as connection:
                changes = {"target": target, "result": result, "words": _short(message)}
                connection.execute(update(acts).where(_COLUMNS.act_id == entry_id).values(changes))
        except LedgerUnavailable as error:
            _log.warning("audit entry %s: the result %s was not recorded: %s", entry_id, result, error)


def _id(at: float, suffix: str) -> str:
    return f"{max(0, int(at * 1_000_000)):017d}-{suffix}"


def _short(text: str | None) -> str | None:
    """`text` without secrets and control characters, cut to TEXT_CHARS_MAX."""
    if text is None:
        return None
    return "".join(char if char.isprintable() else "…" for char in masked(text)[:TEXT_CHARS_MAX])


def _clean(value: Any) -> Any:
    """`value` with each text in it passed through `_short`."""
    if isinstance(value, Mapping):
        return {name: _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return _short(value) if isinstance(value, str) else value
