"""Without workers, the proxies make the partitions of their ledger on Postgres."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg

from proxy.ledger.schema.partitions import missing_partitions
from proxy.storage.database import open_engine, reading
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section


def test_a_proxy_that_settles_by_itself_makes_them(tmp_path: Path, provider: ScriptedProvider, ledger_url: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        connection.execute("DROP TABLE ledger_entries_" + time.strftime("%Y_%m", time.gmtime()))
    served = Tokenweir(tmp_path, providers={"scripted": provider_section(provider.base_url)}, ledger_url=ledger_url)
    engine = open_engine(ledger_url)
    try:
        served.start()
        until = time.monotonic() + 20
        missing = True
        while missing:
            assert time.monotonic() < until
            time.sleep(0.05)
            with reading(engine) as connection_:
                missing = bool(missing_partitions(connection_, time.time()))
    finally:
        served.close()
        engine.dispose()
