"""Ledger entries as the console's tests settle them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Engine

from proxy.ledger.settling.corrections import Corrections
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import id_from
from tests.console.stand import Stand
from tests.ledger.priced_entries import DEARER, a_real_entry, a_real_store, settle

TODAY = int(time.time()) // DAY_S * DAY_S

YESTERDAY = float(TODAY - DAY_S)

MONTH = "2026-09"
SEPTEMBER_10 = datetime(2026, 9, 10, tzinfo=UTC).timestamp()


def entry(number: int, **differences: Any) -> Any:
    at = YESTERDAY + number
    name = f"{id_from(at)}7{number:03x}-8000-{number:012x}"
    return replace(a_real_entry(number, started_at=at, **differences), exchange_id=name, entry_id=f"entry-{number}")


def rerated(engine: Engine) -> Corrections:
    """Exchanges of yesterday are rerated at the dearer price, by root."""
    at_work = Corrections(engine, a_real_store(engine), "root")
    at_work.rerate("tera-large", lambda *_: (DEARER, None), since=YESTERDAY, until=float(TODAY))
    return at_work


def use_september(stand: Stand) -> None:
    """One key has sent three requests in September: one has no price, and the cost of another is unknown."""
    stand.key("key-1")
    differences: list[dict[str, Any]] = [{}, {"price": None}, {"cost": None}]
    for number, one in enumerate(differences):
        name = f"{id_from(SEPTEMBER_10)}7{number:03x}-8000-000000000000"
        settle(stand.engine, replace(a_real_entry(number, started_at=SEPTEMBER_10, **one), exchange_id=name), node=None)
