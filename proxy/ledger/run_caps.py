"""The caps of runs: the most that the requests of one run may spend, as its client says.

Invariant: the first request sets a cap, and later ones only lower it, whichever process they come to.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, Engine, case, exists, select
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.money import Nusd
from proxy.ledger.schema.tables import run_caps
from proxy.storage.database import is_shared, reading, writing

_CAPS = run_caps.c


def lower_cap(engine: Engine, value_id: str, cap_nusd: Nusd, now: float) -> Nusd:
    """Set the cap of the run with this value id, or lower it. Returns the cap. `now`: Unix seconds. Raises
    LedgerUnavailable."""
    with writing(engine) as connection:
        insert = (postgresql if is_shared(connection) else sqlite).insert(run_caps)
        lower = case((insert.excluded.cap_nusd < _CAPS.cap_nusd, insert.excluded.cap_nusd), else_=_CAPS.cap_nusd)
        lowered = insert.on_conflict_do_update(index_elements=[_CAPS.value_id], set_={"cap_nusd": lower})
        row = {"value_id": value_id, "cap_nusd": cap_nusd, "created_at": now}
        connection.execute(lowered, row)
        return Nusd(connection.execute(select(_CAPS.cap_nusd).where(_CAPS.value_id == value_id)).scalar_one())


def read_caps(engine: Engine, value_ids: Collection[str]) -> dict[str, Nusd]:
    """Value id → cap, of those of these runs that have one. Raises LedgerUnavailable."""
    query = select(_CAPS.value_id, _CAPS.cap_nusd).where(_CAPS.value_id.in_(value_ids))
    with reading(engine) as connection:
        return {value_id: Nusd(cap_nusd) for value_id, cap_nusd in connection.execute(query)}


def has_caps(connection: Connection) -> bool:
    """Whether any run has a cap."""
    return bool(connection.execute(select(exists(select(run_caps)))).scalar())
