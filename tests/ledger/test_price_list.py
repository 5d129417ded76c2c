"""The price list of a ledger: one process makes a check, and a list replaces only the one that it was compared with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from proxy.ledger.price_list import (
    RETRY_S,
    PriceListState,
    claim,
    read_content,
    read_state,
    record_check,
    record_failure,
    replace_list,
)
from proxy.storage.database import LedgerUnavailable, open_engine
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

NOW, DAY_S = 1_795_000_000.0, 86_400.0


@on_both_databases
def test_one_of_several_processes_makes_a_check(engine: Engine, ledger_url: str) -> None:
    assert read_state(engine) == PriceListState(), "due at once"

    def claims(now: float) -> int:
        def one(_: int) -> bool:
            own = open_engine(ledger_url)
            try:
                return claim(own, now, DAY_S)
            finally:
                own.dispose()

        with ThreadPoolExecutor(3) as threads:
            return sum(threads.map(one, range(3)))

    assert claims(NOW) == 1
    assert claims(NOW + RETRY_S - 1) == 0
    assert claims(NOW + RETRY_S) == 1, "the first one was killed"
    record_check(engine, NOW + RETRY_S, DAY_S, ["a model"])
    assert claims(NOW + RETRY_S + DAY_S - 1) == 0
    assert claim(engine, NOW + RETRY_S + 60.0, 3_600.0), "the interval was made shorter"


@on_both_databases
def test_a_list_replaces_the_one_that_it_was_compared_with(engine: Engine) -> None:
    assert replace_list(engine, None, "first", b"[1]" * 100_000, NOW)
    assert not replace_list(engine, None, "other", b"[]", NOW)
    assert read_content(engine, "first") == b"[1]" * 100_000
    assert replace_list(engine, "first", "package", None, NOW + 1)
    assert read_content(engine, "package") is None
    with pytest.raises(LedgerUnavailable):
        read_content(engine, "first")
    record_failure(engine, "e" * 10_000)
    failed = read_state(engine)
    assert (failed.version, failed.accepted_at, len(failed.error or "")) == ("package", NOW + 1, 500)
    record_check(engine, NOW + 2, DAY_S, ["a", "b"])
    assert read_state(engine) == PriceListState("package", NOW + 1, NOW + 2, NOW + 2 + DAY_S, ["a", "b"], None)
    assert replace_list(engine, "package", "confirmed", b"[]", NOW + 3)
    assert read_state(engine) == PriceListState("confirmed", NOW + 3, NOW + 2, NOW + 2 + DAY_S, [], None)
