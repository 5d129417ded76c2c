"""Ledger entries as the console's tests settle them."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from proxy.reports.usage import DAY_S, id_from
from tests.ledger.priced_entries import a_real_entry

TODAY = int(time.time()) // DAY_S * DAY_S

YESTERDAY = float(TODAY - DAY_S)


def entry(number: int, **differences: Any) -> Any:
    """An exchange of yesterday."""
    at = YESTERDAY + number
    name = f"{id_from(at)}7{number:03x}-8000-{number:012x}"
    return replace(a_real_entry(number, started_at=at, **differences), exchange_id=name, entry_id=f"entry-{number}")
