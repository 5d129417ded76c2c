"""An import by several processes at once, after an interruption, and in another order: each row once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from proxy.billing.entries import LedgerEntry
from proxy.billing.imported import STATED, ImportedRow, imported_record
from proxy.billing.keys import ApiKey
from proxy.billing.money import Nusd
from proxy.billing.settlement import entry
from proxy.ledger.importing.importer import Importer, ImportFailedError
from proxy.metering.usage import Usage
from proxy.storage.database import open_engine
from tests.ledger.entries import stored
from tests.ledger.priced_entries import a_real_store, assert_right

pytestmark = pytest.mark.io

KEY = ApiKey("key-1", "anna", b"", "", None, 0.0, None, None, 1)
ROWS = [
    ImportedRow(
        line=number, source="csv", at=1_790_000_000.0 + number // 3, model="m", usage=Usage(prompt_tokens=number),
        cost_nusd=Nusd(number), row_id=f"r{number}" if number % 2 else None,
    )
    for number in range(40)
]  # fmt: skip


def line_of(row: ImportedRow, repetition: int = 0) -> tuple[int, LedgerEntry]:
    record = imported_record(row, row.exchange_id(repetition), KEY, ("p", "m"), STATED, STATED)
    return row.line, entry(record)


def test_equal_rows_are_told_apart_by_their_number_and_others_by_what_they_state() -> None:
    named, unnamed = ROWS[1], ROWS[2]
    assert named.exchange_id(0) == named.exchange_id(1)
    assert unnamed.exchange_id(0) != unnamed.exchange_id(1)
    assert len({row.exchange_id() for row in ROWS}) == len(ROWS)
    assert ROWS[3].exchange_id() > ROWS[2].exchange_id(), "in the order of their times"


def test_each_row_once_whoever_imports_it(engine: Engine, ledger_url: str) -> None:
    batches = [list(map(line_of, ROWS[begin : begin + 7])) for begin in range(0, len(ROWS), 7)]

    def everything(order: int) -> tuple[int, int]:
        own = open_engine(ledger_url)
        try:
            importer = Importer(own, a_real_store(own), dry_run=False)
            for batch in batches[:: 1 if order % 2 else -1]:
                importer.add(batch)
            return importer.result.imported, importer.result.repeated
        finally:
            own.dispose()

    with ThreadPoolExecutor(4) as processes:
        results = list(processes.map(everything, range(4)))
    assert sum(imported for imported, _ in results) == len(ROWS)
    assert {imported + repeated for imported, repeated in results} == {len(ROWS)}
    entries = stored(engine)
    assert sorted(one.exchange_id for one in entries) == sorted(row.exchange_id() for row in ROWS)
    assert sum(one.charge_nusd or 0 for one in entries) == sum(range(40))
    assert_right(engine)


def test_a_batch_with_a_changed_row_changes_nothing(engine: Engine) -> None:
    importer = Importer(engine, a_real_store(engine), dry_run=False)
    importer.add([line_of(ROWS[1])])
    other = ImportedRow(line=9, source="csv", at=ROWS[1].at, model="m", usage=Usage(prompt_tokens=7), row_id="r1")
    with pytest.raises(ImportFailedError, match="line 9: id: a row with this id"):
        importer.add([line_of(ROWS[2]), line_of(other)])
    assert [one.exchange_id for one in stored(engine)] == [ROWS[1].exchange_id()]
    assert (importer.result.imported, importer.result.rows) == (1, 1)
