"""Keys in SQL.

Invariants: those of ledger/limits.py; only the digest and the last characters of a secret are stored; a revoked key
stays revoked; the key of an identity never gets a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, func, insert, literal, or_, select, tuple_, update

from proxy.billing.byok import terms_of, terms_text
from proxy.billing.dimensions import KeyDimensions
from proxy.billing.keys import DEFAULT_PROJECT, Account, AccountKind, ApiKey, IdentityKey, KeyChanges
from proxy.billing.limit_rules import LimitRule
from proxy.billing.limits import UNLIMITED, Limits, OnExhausted, OnStoreOutage
from proxy.foundation.names import UnknownNameError
from proxy.ledger.accounts.account_store import IDS_SHOWN_MAX, UnknownAccountError, read_accounts
from proxy.ledger.limit_rules import read_rules
from proxy.ledger.limits import (
    LIMITS,
    NAME_CHARS_MAX,
    checked_name,
    checked_of_scope,
    limits_of,
    limits_row,
    next_revision,
    with_changes,
)
from proxy.ledger.schema.account_tables import accounts, api_keys, limit_rules
from proxy.ledger.settling.spend import IDS_MAX, batches
from proxy.storage.database import Lock, hold, reading, writing

ALIAS_CHARS_MAX = NAME_CHARS_MAX
# Enough to group reports by.
TAGS_MAX, TAG_CHARS_MAX = 20, 64

NO_VALUES: Mapping[str, str] = {}

# Keys in one read of all of them.
PAGE_KEYS = 2_000
# Changes in one read: parsed in 20 ms, and learned in 2 ms of the event loop's time.
CHANGES_MAX = 2_000

_COLUMNS = api_keys.c
_PLAIN = frozenset({"alias", "models", "expires_at", "on_exhausted", "on_store_outage", "tags", "byok"})
_DIMENSIONS = {"dimension_sources": "sources", "dimensions": "fixed"}
CHANGES = _PLAIN | {"limits"} | LIMITS | _DIMENSIONS.keys()
"""the fields that `update` takes"""


class KeyStoreError(ValueError):
    """An invalid change of keys; the message is for the operator."""


class AliasTakenError(KeyStoreError):
    """Another live key has this alias."""


class UnknownKeyError(KeyStoreError, UnknownNameError):
    """No key has this id, and no live key has this alias."""


class KeyChangedError(KeyStoreError):
    """The key has been changed since its holder was authenticated."""


class KeyStore:
    """Creates, lists and changes keys. Every method raises LedgerUnavailable.

    A key is found by its id, or by its alias while it is live; otherwise methods raise UnknownKeyError.
    """

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
        project_id: str = DEFAULT_PROJECT,
        limits: Limits = UNLIMITED,
        on_exhausted: OnExhausted = OnExhausted.FINISH,
        on_store_outage: OnStoreOutage | None = None,
        tags: Iterable[str] = (),
        dimension_sources: Iterable[str] | None = None,
        dimensions: Mapping[str, str] = NO_VALUES,
        byok: str | None = None,
    ) -> ApiKey:
        """Create a key. `models` None: all. `dimension_sources`, `dimensions`: as in `KeyDimensions`. `byok`: the terms
        of `billing/byok.py`; None: the operator's credentials are used.

        Raises AliasTakenError, UnknownAccountError, or ValueError that names the invalid field.
        """
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            key = ApiKey(
                key_id=key_id,
                alias=checked_name("alias", alias),
                digest=digest,
                hint=hint,
                models=None if models is None else frozenset(models),
                created_at=self._clock(),
                expires_at=expires_at,
                revoked_at=None,
                revision=next_revision(connection),
                project_id=project_id,
                limits=checked_of_scope(limits),
                on_exhausted=on_exhausted,
                on_store_outage=on_store_outage,
                tags=_checked_tags(tags),
                dimensions=_changed_dimensions(
                    None, {"dimension_sources": dimension_sources, "dimensions": dimensions}
                ),
                byok=_checked_byok(byok),
            )
            _require_project(connection, project_id)
            _require_alias(connection, key, key.created_at)
            connection.execute(insert(api_keys).values(_row_of(key)))
        return key

    def of_identity(self, wanted: IdentityKey) -> ApiKey:
        """The key of an identity in a project, live or not; it is created if there is none. Raises
        UnknownAccountError."""
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            if found := _keys(connection, _COLUMNS.key_id == wanted.key_id):
                return found[0]
            key = ApiKey(
                key_id=wanted.key_id, alias=wanted.alias, digest=wanted.digest, hint=wanted.hint, models=wanted.models,
                created_at=self._clock(), expires_at=None, revoked_at=None, revision=next_revision(connection),
                project_id=wanted.project.account_id, limits=checked_of_scope(wanted.limits), byok=wanted.byok,
            )  # fmt: skip
            _require_project(connection, key.project_id)
            try:
                _require_alias(connection, key, key.created_at)
                checked_name("alias", key.alias)
            except ValueError:
                key = replace(key, alias=key.key_id)
            connection.execute(insert(api_keys).values(_row_of(key)))
            return _keys(connection, _COLUMNS.key_id == key.key_id)[0]  # as others read it, to the microsecond

    def every(self) -> Iterator[ApiKey]:
        """All keys, oldest first, including revoked and expired ones. Read page by page, without a common snapshot."""
        order = _COLUMNS.created_at, _COLUMNS.key_id
        query, after = select(api_keys).order_by(*order).limit(PAGE_KEYS), None
        while True:
            with reading(self._engine) as connection:
                rows = connection.execute(query if after is None else query.where(tuple_(*order) > after)).all()
            yield from map(_key_of, rows)
            if len(rows) < PAGE_KEYS:
                return
            created_at = literal(rows[-1].created_at, _COLUMNS.created_at.type)
            after = tuple_(created_at, literal(rows[-1].key_id, _COLUMNS.key_id.type))

    def limited(self, first: int, size: int) -> tuple[list[ApiKey], int]:
        """At most `size` of the keys with limits of their own that are not revoked, newest first, from number `first`
        (0: the newest); and their total number."""
        wanted = _COLUMNS.limits.is_not(None), _COLUMNS.revoked_at.is_(None)
        newest = _COLUMNS.created_at.desc(), _COLUMNS.key_id.desc()
        with reading(self._engine) as connection:
            total = connection.execute(select(func.count()).select_from(api_keys).where(*wanted)).scalar_one()
            rows = connection.execute(select(api_keys).where(*wanted).order_by(*newest).limit(size).offset(first)).all()
        return [_key_of(row) for row in rows], total

    def one(self, key_id_or_alias: str) -> ApiKey:
        """The key with this id, or else the live one with this alias."""
        with reading(self._engine) as connection:
            return _one(connection, key_id_or_alias, self._clock())

    def update(self, key_id_or_alias: str, **changes: Any) -> ApiKey:
        """Change fields, `limits`, or single limits by their names. Equal values take no new revision.

        Raises AliasTakenError, KeyStoreError for a revoked key, or ValueError that names the invalid field.
        """
        assert changes.keys() <= CHANGES, f"not fields of a key: {changes.keys() - CHANGES}"

        def changed(key: ApiKey) -> ApiKey:
            plain = {name: value for name, value in changes.items() if name in _PLAIN}
            new = replace(key, **plain, limits=checked_of_scope(with_changes(key.limits, changes)))
            checked_name("alias", new.alias)
            models = None if new.models is None else frozenset(new.models)
            dimensions = _changed_dimensions(new.dimensions, changes)
            return replace(
                new,
                models=models,
                tags=_checked_tags(new.tags),
                dimensions=dimensions,
                byok=_checked_byok(new.byok),
            )

        return self._change(key_id_or_alias, changed)

    def rotate(
        self, key_id_or_alias: str, *, digest: bytes, hint: str, old_until: float, holder_digest: bytes | None = None
    ) -> ApiKey:
        """Replace the key's secret. The previous secret stays valid until `old_until` (Unix seconds); older ones are
        invalid. `holder_digest`: the digest of the secret with which the holder of the key has asked for it; None: an
        operator has.

        Raises KeyStoreError for a revoked key, and for the key of an identity. For a holder, raises KeyChangedError if
        the key is blocked or has another secret now, and while the secret before is still valid: nobody who knows the
        secret can make another holder's invalid without a grace.
        """

        def changed(key: ApiKey) -> ApiKey:
            if not key.has_secret:
                raise KeyStoreError(f"the key {key.key_id} has no secret: its clients send tokens of an issuer")
            if holder_digest is not None and not self._may_rotate(key, holder_digest):
                raise KeyChangedError(f"the key {key.key_id} was changed: its holder cannot rotate it now")
            return replace(key, digest=digest, hint=hint, old_digest=key.digest, old_until=old_until)

        return self._change(key_id_or_alias, changed)

    def _may_rotate(self, key: ApiKey, holder_digest: bytes) -> bool:
        is_old_valid = key.old_until is not None and self._clock() < key.old_until
        return key.blocked_at is None and key.digest == holder_digest and not is_old_valid

    def block(self, key_id_or_alias: str) -> ApiKey:
        """Refuse the key until it is unblocked. Idempotent. Raises KeyStoreError for a revoked key."""
        now = self._clock()
        return self._change(
            key_id_or_alias, lambda key: key if key.blocked_at is not None else replace(key, blocked_at=now)
        )

    def unblock(self, key_id_or_alias: str) -> ApiKey:
        """Accept the key again. Raises KeyStoreError for a revoked key."""
        return self._change(key_id_or_alias, lambda key: replace(key, blocked_at=None))

    def revoke(self, key_id_or_alias: str) -> ApiKey:
        """Refuse the key permanently. Idempotent."""
        now = self._clock()
        return self._change(
            key_id_or_alias, lambda key: key if key.revoked_at is not None else replace(key, revoked_at=now), final=True
        )

    def latest(self, keys_max: int) -> KeyChanges:
        """All accounts and rules, and the `keys_max` usable keys that changed last, for a reader that continues with
        `changes_since`."""
        usable = _COLUMNS.revoked_at.is_(None) & or_(_COLUMNS.expires_at.is_(None), _COLUMNS.expires_at > self._clock())
        query = select(api_keys).where(usable).order_by(_COLUMNS.revision.desc()).limit(keys_max)
        with reading(self._engine) as connection:
            others: list[Account | LimitRule] = [*read_accounts(connection), *read_rules(connection)]
            revision = next_revision(connection) - 1
            rows = connection.execute(query).all()  # parsed after the transaction: it must not be idle for long
        return KeyChanges([*others, *map(_key_of, reversed(rows))], revision, behind=False)

    def changes_since(
        self, revision: int, digests: Collection[bytes] = (), key_ids: Collection[str] = ()
    ) -> KeyChanges:
        """The next keys, accounts and rules that were created or changed after `revision`, about CHANGES_MAX in the
        order of the changes; and the keys with these digests of secrets, current or previous, or with these ids."""
        with reading(self._engine) as connection:
            later = limit_rules.c.revision > revision
            changes: list[ApiKey | Account | LimitRule] = [
                *_keys(connection, _COLUMNS.revision > revision, limit=CHANGES_MAX),
                *read_accounts(connection, accounts.c.revision > revision, limit=CHANGES_MAX),
                *read_rules(connection, later, deleted=True, limit=CHANGES_MAX),
            ]
            changes.sort(key=attrgetter("revision"))
            is_whole = len(changes) < CHANGES_MAX
            if not is_whole:  # a rule has its revision in common with an account
                last = changes[CHANGES_MAX - 1].revision
                changes = [one for one in changes if one.revision <= last]
            found = [
                key
                for column, wanted in (  # a query each: each by its index
                    (_COLUMNS.digest, digests),
                    (_COLUMNS.old_digest, digests),
                    (_COLUMNS.key_id, key_ids),
                )
                for some in batches(wanted, IDS_MAX)
                for key in _keys(connection, column.in_(some))
            ]
        until = changes[-1].revision if changes else revision
        return KeyChanges([*changes, *found], until, behind=not is_whole)

    def with_ids(self, key_ids: Collection[str]) -> list[ApiKey]:
        """The keys with these ids, in any order."""
        with reading(self._engine) as connection:
            return [key for some in batches(key_ids, IDS_MAX) for key in _keys(connection, _COLUMNS.key_id.in_(some))]

    def _change(self, key_id_or_alias: str, changed: Callable[[ApiKey], ApiKey], *, final: bool = False) -> ApiKey:
        """`final`: the change applies to revoked keys too."""
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            now = self._clock()
            old = _one(connection, key_id_or_alias, now)
            if old.revoked_at is not None and not final:
                raise KeyStoreError(f"the key {old.key_id} is revoked and cannot be changed; create a new key")
            new = changed(old)
            if new == old:
                return old
            if (new.alias, new.expires_at) != (old.alias, old.expires_at):  # no other change can break uniqueness
                _require_alias(connection, new, now)
            new = replace(new, revision=next_revision(connection))
            connection.execute(update(api_keys).where(_COLUMNS.key_id == new.key_id).values(_row_of(new)))
        return new


def _one(connection: Connection, key_id_or_alias: str, now: float) -> ApiKey:
    keys = _keys(connection, or_(_COLUMNS.key_id == key_id_or_alias, _COLUMNS.alias == key_id_or_alias))
    matches = [key for key in keys if key.key_id == key_id_or_alias] or [key for key in keys if key.live(now)]
    if not matches:
        earlier = ", ".join(key.key_id for key in keys[-IDS_SHOWN_MAX:])
        hint = f"; revoked or expired keys that had it: {earlier}" if earlier else ""
        raise UnknownKeyError(f"key: no key has the id, and no live key the alias, {key_id_or_alias!r}{hint}")
    return matches[0]


def _require_alias(connection: Connection, key: ApiKey, now: float) -> None:
    """Check that no other live key has the alias of a live key. Raises AliasTakenError."""
    same = _keys(connection, _COLUMNS.alias == key.alias) if key.live(now) else []
    if any(one.live(now) for one in same if one.key_id != key.key_id):
        raise AliasTakenError(f"alias: another live key already has {key.alias!r}: choose another, or rotate that key")


def _require_project(connection: Connection, project_id: str) -> None:
    """Check that the project exists. Raises UnknownAccountError."""
    is_project = accounts.c.account_id == project_id, accounts.c.kind == AccountKind.PROJECT.value
    if not read_accounts(connection, *is_project):
        raise UnknownAccountError(f"project: no project has the id {project_id!r}")


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Distinct tags, in their order. Raises ValueError."""
    distinct = tuple(dict.fromkeys(tags))
    if len(distinct) > TAGS_MAX:
        raise ValueError(f"tags: must be at most {TAGS_MAX}, not {len(distinct)}")
    for tag in distinct:
        if not tag.strip() or len(tag) > TAG_CHARS_MAX or not tag.isprintable():
            raise ValueError(f"tags: each must be 1 to {TAG_CHARS_MAX} printable characters, not {tag!r}")
    return distinct


def _checked_byok(terms: str | None) -> str | None:
    """Raises ValueError."""
    try:
        return None if terms is None else terms_of(terms_text(terms))
    except ValueError as wrong:
        raise ValueError(f"byok: {wrong}") from None


def _changed_dimensions(old: KeyDimensions | None, changes: Mapping[str, Any]) -> KeyDimensions | None:
    """Raises ValueError that names the invalid field."""
    given = {field: changes[name] for name, field in _DIMENSIONS.items() if name in changes}
    return replace(old or KeyDimensions(), **given).checked()


def _keys(connection: Connection, *conditions: ColumnElement[bool], limit: int | None = None) -> list[ApiKey]:
    rows = connection.execute(select(api_keys).where(*conditions).order_by(_COLUMNS.revision).limit(limit))
    return [_key_of(row) for row in rows]


def _key_of(row: Row[Any]) -> ApiKey:
    return ApiKey(**{
        **row._asdict(),
        "models": None if row.models is None else frozenset(row.models),
        "limits": limits_of(row.limits),
        "on_exhausted": OnExhausted(row.on_exhausted),
        "on_store_outage": None if row.on_store_outage is None else OnStoreOutage(row.on_store_outage),
        "tags": tuple(row.tags or ()),
        "dimensions": None if row.dimensions is None else KeyDimensions.of(row.dimensions),
    })  # fmt: skip


def _row_of(key: ApiKey) -> dict[str, Any]:
    row = {column.name: getattr(key, column.name) for column in api_keys.columns}
    return {
        **row,
        "models": None if key.models is None else sorted(key.models),
        "limits": limits_row(key.limits),
        "on_exhausted": key.on_exhausted.value,
        "on_store_outage": None if key.on_store_outage is None else key.on_store_outage.value,
        "tags": list(key.tags) or None,
        "dimensions": None if key.dimensions is None else key.dimensions.stored(),
    }
