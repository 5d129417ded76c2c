"""Keys in SQL. Law: every change of a key takes the table's next revision in the same transaction, so whoever knows a
revision can ask for all that changed since; no secret ever comes here, only its digest and its last characters.

Changes are made one after another, on any number of machines: a revision that is seen has all earlier ones before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, func, insert, or_, select, update

from proxy.billing.keys import ApiKey
from proxy.ledger.database import Lock, hold, reading, writing
from proxy.ledger.tables import api_keys

# Fits a table's column and a metric's label.
ALIAS_CHARS_MAX = 128


class KeyStoreError(ValueError):
    """A change of keys that cannot be made; its words are for the operator."""


class AliasTakenError(KeyStoreError):
    """Another live key has this alias."""


class UnknownKeyError(KeyStoreError):
    """No key has this id, and no live key has this alias."""


class KeyStore:
    """Makes, lists and revokes keys. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self._engine = engine
        self._clock = clock

    def create(
        self,
        *,
        key_id: str,
        alias: str,
        digest: bytes,
        hint: str,
        models: Iterable[str] | None,
        expires_at: float | None,
    ) -> ApiKey:
        """Put a new key down. `models` None: all. Raises AliasTakenError, or ValueError for a bad alias."""
        if not alias.strip() or len(alias) > ALIAS_CHARS_MAX or not alias.isprintable():
            raise ValueError(f"an alias has 1 to {ALIAS_CHARS_MAX} printable characters: {alias!r}")
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            now = self._clock()
            if any(key.live(now) for key in _keys(connection, api_keys.c.alias == alias)):
                raise AliasTakenError(f"a live key has the alias {alias!r} already")
            key = ApiKey(
                key_id=key_id,
                alias=alias,
                digest=digest,
                hint=hint,
                models=None if models is None else frozenset(models),
                created_at=now,
                expires_at=expires_at,
                revoked_at=None,
                revision=_next_revision(connection),
            )
            connection.execute(insert(api_keys).values(_row_of(key)))
        return key

    def every(self) -> list[ApiKey]:
        """Every key that ever was, oldest first."""
        with reading(self._engine) as connection:
            return sorted(_keys(connection), key=lambda key: (key.created_at, key.key_id))

    def revoke(self, key_id_or_alias: str) -> ApiKey:
        """Revoke the key with this id, or else the live one with this alias; again is fine. Raises UnknownKeyError."""
        columns = api_keys.c
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            now = self._clock()
            named = _keys(connection, or_(columns.key_id == key_id_or_alias, columns.alias == key_id_or_alias))
            found = [k for k in named if k.key_id == key_id_or_alias] or [k for k in named if k.live(now)]
            if not found:
                raise UnknownKeyError(f"no key has the id, and no live key the alias, {key_id_or_alias!r}")
            if found[0].revoked_at is None:
                change = {"revoked_at": now, "revision": _next_revision(connection)}
                connection.execute(update(api_keys).where(columns.key_id == found[0].key_id).values(change))
            return _keys(connection, columns.key_id == found[0].key_id)[0]

    def changes_since(self, revision: int) -> list[ApiKey]:
        """Every key made or changed after `revision`, in the order of the changes; 0: all."""
        with reading(self._engine) as connection:
            return _keys(connection, api_keys.c.revision > revision)


def _next_revision(connection: Connection) -> int:
    highest = connection.execute(select(func.max(api_keys.c.revision))).scalar()
    return int(highest or 0) + 1


def _keys(connection: Connection, *conditions: ColumnElement[bool]) -> list[ApiKey]:
    rows = connection.execute(select(api_keys).where(*conditions).order_by(api_keys.c.revision))
    return [_key_of(row) for row in rows]


def _key_of(row: Row[Any]) -> ApiKey:
    return ApiKey(
        key_id=row.key_id,
        alias=row.alias,
        digest=row.digest,
        hint=row.hint,
        models=None if row.models is None else frozenset(row.models),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        revision=row.revision,
    )


def _row_of(key: ApiKey) -> dict[str, Any]:
    row = {column.name: getattr(key, column.name) for column in api_keys.columns}
    return {**row, "models": None if key.models is None else sorted(key.models)}
