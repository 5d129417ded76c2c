"""Without workers, the proxies make the partitions of their ledger on Postgres."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import psycopg
from sqlalchemy import Engine

from proxy.ledger.schema.partitions import missing_partitions
from proxy.storage.database import open_engine, reading
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section
from tests.support.waiting import wait_until


def missing(engine: Engine) -> list[datetime]:
    with reading(engine) as connection:
        return missing_partitions(connection, time.time())


def test_a_proxy_that_settles_by_itself_makes_them(tmp_path: Path, provider: ScriptedProvider, ledger_url: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        connection.execute("DROP TABLE ledger_entries_" + time.strftime("%Y_%m", time.gmtime()))
    served = Tokenweir(tmp_path, providers={"scripted": provider_section(provider.base_url)}, ledger_url=ledger_url)
    engine = open_engine(ledger_url)
    try:
        served.start()
        wait_until(lambda: not missing(engine))
    finally:
        served.close()
        engine.dispose()
