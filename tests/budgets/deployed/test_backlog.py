"""A proxy that starts with a long backlog serves before it has read it, and what the backlog will charge counts."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

import pytest
from msgspec.structs import replace

from proxy.billing.limits import Limits
from proxy.billing.money import NUSD_PER_USD
from proxy.billing.pricing.prices import configured
from proxy.billing.record import Rates
from proxy.demo.script import Shape
from proxy.foundation.ids import exchange_id
from proxy.journal.journal import Journal
from proxy.runtime.proxy.admission import BACKLOG_MAX
from tests.crash.stage import Stage, quick_keys, until
from tests.journal.records import ROOMY, opened, record
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

PRICE = configured(Rates(10**9, 10**9, 10**9))
# A record of `making` has 40 tokens.
CHARGE_NUSD = 40_000
RECORDS = 2 * BACKLOG_MAX


def leave(served: Tokenweir, key_id: str) -> None:
    """What a proxy that was killed in an outage of its ledger leaves."""
    journal = Journal.open(served.folder / "data" / "journal", bytes_max=ROOMY)
    for number in range(RECORDS):
        now = time.time()
        began = replace(opened(number), exchange_id=exchange_id(), key_id=key_id, price=PRICE, started_at=now)
        journal.begin(began)
        journal.finish(record(began))
    journal.close()


@pytest.mark.thorough
@pytest.mark.process
async def test_what_a_long_backlog_will_charge_counts(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider
) -> None:
    provider.script("small", Shape("openai", tokens=3))
    served = tokenweir(start=False)
    within = (RECORDS - BACKLOG_MAX // 2) * CHARGE_NUSD
    assert within < NUSD_PER_USD
    secrets = [
        *quick_keys(served, 1, Limits(budget_nusd=within), alias="spent"),
        *quick_keys(served, 1, alias="free"),
    ]
    with closing(sqlite3.connect(served.folder / "data" / "ledger.db", isolation_level=None)) as ledger:
        ((key_id,),) = ledger.execute("SELECT key_id FROM api_keys WHERE alias = 'spent'").fetchall()
        leave(served, key_id)
        ledger.execute("BEGIN IMMEDIATE")  # it takes nothing
        for _ in range(2):  # then with what the store has kept
            served.start()
            async with Stage(served, secrets[1]) as free, Stage(served, secrets[0]) as spent:
                assert (await free.whole("small")).status == 200
                refused = await spent.whole("small", max_tokens=5)
                assert refused.status == 402, refused.body
            served.kill()
        ledger.execute("ROLLBACK")
    served.start()
    await until(lambda: len(served.read_ledger()) == RECORDS + 2)
