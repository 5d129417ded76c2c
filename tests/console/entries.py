"""Ledger entries as the console's tests settle them."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Engine

from proxy.ledger.settling.corrections import Corrections
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import id_from
from tests.ledger.priced_entries import DEARER, a_real_entry, a_real_store

TODAY = int(time.time()) // DAY_S * DAY_S

YESTERDAY = float(TODAY - DAY_S)


def entry(number: int, **differences: Any) -> Any:
    at = YESTERDAY + number
    name = f"{id_from(at)}7{number:03x}-8000-{number:012x}"
    return replace(a_real_entry(number, started_at=at, **differences), exchange_id=name, entry_id=f"entry-{number}")


def rerated(engine: Engine) -> Corrections:
    """Exchanges of yesterday are rerated at the dearer price, by root."""
    at_work = Corrections(engine, a_real_store(engine), "root")
    at_work.rerate("tera-large", lambda *_: (DEARER, None), since=YESTERDAY, until=float(TODAY))
    return at_work
