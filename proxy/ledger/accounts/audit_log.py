"""What operators do, line by line. Law: an act that is not put down is not done; what became of it is said in the same
line, once. No line is ever deleted, and none holds a secret, whatever somebody has pasted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, insert, select, update

from proxy.foundation.secret import masked
from proxy.ledger.schema.tables import acts
from proxy.storage.database import LedgerUnavailable, reading, writing

BEGUN, DONE, REFUSED, FAILED = "begun", "done", "refused", "failed"

# A name, an alias, an address as somebody typed it.
TEXT_CHARS_MAX = 256
# In memory at a time.
PAGE_ACTS = 500

_log = logging.getLogger(__name__)
_COLUMNS = acts.c


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and from where."""

    name: str
    via: str
    """api or cli"""
    origin: str | None
    """an address, or a machine's name"""


@dataclass(slots=True)
class PendingEntry:
    """One that is being done; its `target` may become known while it is."""

    target: str | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One as it was put down. Times: Unix seconds."""

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


class AuditLog:
    """Puts acts down, and reads them. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self._engine = engine
        self._clock = clock

    @contextmanager
    def act(
        self, by: Actor, action: str, target: str | None, details: Mapping[str, Any] | None
    ) -> Iterator[PendingEntry]:
        """Do it in here. A ValueError is a refusal: its words are put down."""
        act = PendingEntry(target)
        act_id = self._begin(by, action, act, details)
        try:
            yield act
        except ValueError as refusal:
            self._end(act_id, by, action, act, REFUSED, str(refusal))
            raise
        except BaseException as failure:
            self._end(act_id, by, action, act, FAILED, type(failure).__name__)
            raise
        self._end(act_id, by, action, act, DONE, None)

    def since(self, at: float) -> Iterator[AuditEntry]:
        """Those at or after `at` (Unix seconds), oldest first, page by page."""
        after = _id(at, "")
        while True:
            query = select(acts).where(_COLUMNS.act_id > after).order_by(_COLUMNS.act_id).limit(PAGE_ACTS)
            with reading(self._engine) as connection:
                page = [AuditEntry(*row) for row in connection.execute(query)]
            yield from page
            if len(page) < PAGE_ACTS:
                return
            after = page[-1].act_id

    def latest(self, limit: int, before: str | None = None) -> list[AuditEntry]:
        """The last ones, newest first; or the last ones before the act of this id."""
        query = select(acts).order_by(_COLUMNS.act_id.desc()).limit(limit)
        if before is not None:
            query = query.where(_COLUMNS.act_id < before)
        with reading(self._engine) as connection:
            return [AuditEntry(*row) for row in connection.execute(query)]

    def _begin(self, by: Actor, action: str, act: PendingEntry, details: Mapping[str, Any] | None) -> str:
        now = self._clock()
        act_id = _id(now, secrets.token_hex(8))
        row = {
            "act_id": act_id,
            "at": now,
            "actor": _short(by.name),
            "via": by.via,
            "origin": _short(by.origin),
            "action": action,
            "target": _short(act.target),
            "details": _clean(details) if details else None,
            "result": BEGUN,
            "words": None,
        }
        with writing(self._engine) as connection:
            connection.execute(insert(acts).values(row))
        return act_id

    def _end(self, act_id: str, by: Actor, action: str, act: PendingEntry, result: str, words: str | None) -> None:
        """Whatever becomes of this line, the act is done: then it stays as it was begun."""
        target = _short(act.target)
        _log.info("act: %s %s by %s (%s, %s): %s", action, target, _short(by.name), by.via, _short(by.origin), result)
        try:
            with writing(self._engine) as connection:
                changed = {"target": target, "result": result, "words": _short(words)}
                connection.execute(update(acts).where(_COLUMNS.act_id == act_id).values(changed))
        except LedgerUnavailable as error:
            _log.warning("act %s: what became of it cannot be put down: %s", act_id, error)


def _id(at: float, noise: str) -> str:
    return f"{max(0, int(at * 1_000_000)):017d}-{noise}"


def _short(text: str | None) -> str | None:
    """What a database and a terminal can take of it."""
    if text is None:
        return None
    return "".join(letter if letter.isprintable() else "…" for letter in masked(text)[:TEXT_CHARS_MAX])


def _clean(value: Any) -> Any:
    """The same for the texts in the details."""
    if isinstance(value, Mapping):
        return {name: _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return _short(value) if isinstance(value, str) else value
