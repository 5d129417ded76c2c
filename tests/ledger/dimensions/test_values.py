"""Values of dimensions: one id each, whoever asks first; nothing of an erased one is left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, select

from proxy.ledger.dimensions.values import VALUES_MAX, DimensionValue, DimensionValues
from proxy.ledger.schema.tables import dimension_values
from proxy.storage.database import reading, writing
from tests.ledger.entries import a_ledger

pytestmark = pytest.mark.io

ALICE = DimensionValue("proj_a", "end_user", "alice@example.com")


def everything(_value: DimensionValue) -> bool:
    return True


def nothing(_value: DimensionValue) -> bool:
    return False


def test_a_value_has_one_id(engine: Engine) -> None:
    values = DimensionValues(engine, clock=lambda: 5.0)
    assert values.ids([ALICE], nothing) == {}
    named = [ALICE, ALICE._replace(project_id="proj_b"), ALICE._replace(dimension="session"), ALICE]
    ids = values.ids(named, everything)
    assert len(set(ids.values())) == len(ids) == 3
    assert all(len(value_id) == 18 and value_id.startswith("v_") for value_id in ids.values())
    assert values.ids(named, nothing) == ids
    assert values.names([*ids.values(), "overflow", "v_unknown"]) == dict.fromkeys(ids.values(), ALICE.value)
    with reading(engine) as connection:
        assert set(connection.execute(select(dimension_values.c.created_at)).scalars()) == {5.0}


def test_only_values_that_are_new_are_asked_about(engine: Engine) -> None:
    values, asked = DimensionValues(engine), list[DimensionValue]()
    some = [DimensionValue("proj_a", "session", f"s{number}") for number in range(2 * VALUES_MAX)]

    def every_second(value: DimensionValue) -> bool:
        asked.append(value)
        return len(asked) % 2 == 0

    first = values.ids(some, every_second)
    assert (len(first), len(asked)) == (VALUES_MAX, 2 * VALUES_MAX)
    second = values.ids(some, everything)
    assert len(second) == 2 * VALUES_MAX
    assert first.items() <= second.items()
    assert len(values.names(second.values())) == 2 * VALUES_MAX


def test_two_machines_that_create_the_same_values_get_the_same_ids(engine: Engine) -> None:
    some = [DimensionValue("proj_a", "run", f"run {number}") for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        jobs = [
            threads.submit(DimensionValues(engine).ids, order, everything)
            for order in (some, some[::-1], some[20:] + some[:20], some)
        ]
        found = [job.result() for job in jobs]
    assert len(found[0]) == 40
    assert all(one == found[0] for one in found)


def test_values_are_found_and_erased(engine: Engine) -> None:
    values = DimensionValues(engine)
    other = ALICE._replace(project_id="proj_b")
    ids = values.ids([ALICE, other, ALICE._replace(value="bob")], everything)
    assert values.find("end_user", [ALICE.value]) == {ids[ALICE]: ALICE, ids[other]: other}
    assert values.find("end_user", [ALICE.value], "proj_b") == {ids[other]: other}
    assert values.find("session", [ALICE.value]) == {}
    assert values.erase([ids[ALICE], "v_unknown"]) == 1
    assert values.names([ids[ALICE]]) == {}
    again = values.ids([ALICE], everything)
    assert again[ALICE] != ids[ALICE]


def test_a_file_has_nothing_of_an_erased_value(tmp_path: Path) -> None:
    """Even in pages that are free."""
    engine = a_ledger(tmp_path)
    values, secret = DimensionValues(engine), "someone-at-a-place"
    ids = values.ids([DimensionValue("proj_a", "end_user", f"{secret}-{n}") for n in range(500)], everything)
    values.erase(ids.values())
    engine.dispose()  # the write-ahead log is part of the file then
    assert secret.encode() not in Path(engine.url.database or "").read_bytes()


def test_an_id_is_of_one_value_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance makes the same id twice: the second value has none."""
    monkeypatch.setattr("proxy.ledger.dimensions.values._new_id", lambda: "v_same")
    with writing(engine) as connection:
        connection.execute(insert(dimension_values).values(**ALICE._asdict(), value_id="v_same", created_at=1.0))
    values = DimensionValues(engine)
    assert values.ids([ALICE, ALICE._replace(value="bob")], everything) == {ALICE: "v_same"}
