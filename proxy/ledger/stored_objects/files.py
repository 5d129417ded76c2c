"""The keys' files at providers.

Invariant: if a provider uses a file id again, the last key that created it owns it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, and_, delete, func, select

from proxy.billing.batch import BatchInput, StoredFile
from proxy.billing.keys import ApiKey
from proxy.ledger.schema.tables import stored_files
from proxy.ledger.stored_objects.pages import owned, page
from proxy.metering.stored_objects.api import PageAsked
from proxy.storage.database import reading, writing

_FILES = stored_files.c
_FIELDS = StoredFile.__struct_fields__
_ROW = [_FILES[name] for name in _FIELDS]


class FileStore:
    """Stores files. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, file: StoredFile) -> None:
        """Store a file."""
        with writing(self._engine) as connection:
            add_file(connection, file)

    def find(self, file_ids: Collection[str]) -> dict[str, StoredFile]:
        """The stored files among these ids, by id."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(*_ROW).where(_FILES.file_id.in_(list(file_ids))))
            return {row.file_id: _file(row) for row in rows}

    def page(self, api: str, key: ApiKey, asked: PageAsked) -> tuple[list[StoredFile], bool]:
        """A page of the key's files, and whether there are more. Raises UnknownCursorError."""
        where = and_(_FILES.api == api, owned(stored_files, key))
        if asked.purpose is not None:
            where = and_(where, _FILES.purpose == asked.purpose)
        with reading(self._engine) as connection:
            rows, more = page(connection, _ROW, _FILES.file_id, where, asked)
        return [_file(row) for row in rows], more

    def count(self, key_id: str) -> int:
        """The number of files that the key has uploaded."""
        with reading(self._engine) as connection:
            uploaded = and_(_FILES.key_id == key_id, _FILES.made_by.is_(None))
            query = select(func.count()).select_from(stored_files).where(uploaded)
            return int(connection.execute(query).scalar_one())

    def forget(self, file_id: str) -> None:
        """Delete a file from the store."""
        with writing(self._engine) as connection:
            connection.execute(delete(stored_files).where(_FILES.file_id == file_id))


def add_file(connection: Connection, file: StoredFile) -> None:
    """Store a file, in this transaction."""
    connection.execute(delete(stored_files).where(_FILES.file_id == file.file_id))
    row = msgspec.structs.asdict(file) | {"input": None if file.input is None else msgspec.to_builtins(file.input)}
    connection.execute(stored_files.insert().values(row))


def _file(row: Any) -> StoredFile:
    values = dict(zip(_FIELDS, row, strict=True))
    read = values["input"]
    return StoredFile(**values | {"input": None if read is None else msgspec.convert(read, BatchInput)})
