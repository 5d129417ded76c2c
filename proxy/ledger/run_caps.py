"""The caps of runs: the most that the requests of one key in one run may spend, as its client says.

Invariant: the first request sets a cap, and later ones only lower it, in every process.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, Engine, case, exists, select
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.money import Nusd
from proxy.ledger.schema.account_tables import run_caps
from proxy.storage.database import is_shared, reading, writing

_CAPS = run_caps.c


RunOfKey = tuple[str, str]
"""id of the key, and value id of the run"""


def lower_cap(engine: Engine, run: RunOfKey, cap_nusd: Nusd, now: float) -> Nusd:
    """Set the cap of a run, or lower it. Returns the cap. `now`: Unix seconds. Raises LedgerUnavailable."""
    key_id, value_id = run
    with writing(engine) as connection:
        insert = (postgresql if is_shared(connection) else sqlite).insert(run_caps)
        lower = case((insert.excluded.cap_nusd < _CAPS.cap_nusd, insert.excluded.cap_nusd), else_=_CAPS.cap_nusd)
        lowered = insert.on_conflict_do_update(index_elements=list(run_caps.primary_key), set_={"cap_nusd": lower})
        connection.execute(lowered, {"value_id": value_id, "key_id": key_id, "cap_nusd": cap_nusd, "created_at": now})
        found = select(_CAPS.cap_nusd).where(_CAPS.value_id == value_id, _CAPS.key_id == key_id)
        return Nusd(connection.execute(found).scalar_one())


def read_caps(engine: Engine, value_ids: Collection[str]) -> dict[RunOfKey, Nusd]:
    """The caps of the runs with these value ids, of all keys. Raises LedgerUnavailable."""
    query = select(_CAPS.key_id, _CAPS.value_id, _CAPS.cap_nusd).where(_CAPS.value_id.in_(value_ids))
    with reading(engine) as connection:
        return {(key_id, value_id): Nusd(cap) for key_id, value_id, cap in connection.execute(query)}


def has_caps(connection: Connection) -> bool:
    """Whether any run has a cap."""
    return bool(connection.execute(select(exists(select(run_caps)))).scalar())
