"""Usage that never passed the proxy, as a record. Pure.

Invariants: the same row gives the same exchange id, so that a row is billed once. The counts are as stated. The entry
has the detail `imported`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from proxy.billing.byok import byok_lists
from proxy.billing.details import EntryDetails
from proxy.billing.dimensions import NO_DIMENSIONS, Dimensions
from proxy.billing.keys import ApiKey
from proxy.billing.money import Nusd
from proxy.billing.pricing.rules import NO_LIST
from proxy.billing.record import BillableParts, Opened, Outcome, Price, UsageRecord
from proxy.billing.settlement import Situation
from proxy.foundation.ids import derived_id
from proxy.metering.usage import Reading, Usage, UsageSource

ENDPOINT = "import"
"""the endpoint of imported entries"""
STATED = msgspec.structs.replace(NO_LIST, version="imported", stated=("1",))
"""the price list of a row that is billed at the cost that it states"""


class ImportedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as the source states it."""

    line: int
    """the row's line in the file; the first line is 1"""
    source: str
    """`csv`, `jsonl`, `claude_code`, `codex`"""
    at: float
    """Unix seconds, in whole microseconds"""
    model: str
    usage: Usage
    provider: str | None = None
    key: str | None = None
    """the id or alias of a key"""
    cost_nusd: Nusd | None = None
    """the stated cost"""
    row_id: str | None = None
    """the id of the request at the source"""
    dimensions: Mapping[str, str] = msgspec.field(default_factory=dict)
    """dimension → value"""

    def exchange_id(self, repetition: int = 0) -> str:
        """The exchange id that follows from the row's time and id; without an id, from its content and `repetition`:
        the number of equal rows before this one."""
        stamp = f"{int(self.at * 1000):012x}"
        content = self.row_id if self.row_id is not None else f"{self.content}#{repetition}"
        return derived_id(f"{stamp[:8]}-{stamp[8:]}", f"import/{'id' if self.row_id is not None else 'row'}/{content}")

    @property
    def content(self) -> str:
        """A digest of the row without its line and key."""
        stated = (self.at, self.model, self.provider, self.usage, self.cost_nusd, sorted(self.dimensions.items()))
        return hashlib.sha256(msgspec.json.encode(stated)).hexdigest()


def imported_record(
    row: ImportedRow,
    exchange_id: str,
    key: ApiKey,
    served_by: tuple[str, str],
    price: Price | None,
    cost: Price | None,
    dimensions: Dimensions = NO_DIMENSIONS,
) -> UsageRecord:
    """The record of a row. `served_by`: the provider, and its name for the model. `price`, `cost`: the lists of such a
    request without the key's terms for clients' own credentials; STATED: the stated cost."""
    provider, upstream_model = served_by
    if key.byok is not None:
        price, cost = byok_lists(key.byok, price, cost)
    named = {} if row.row_id is None else {"id": row.row_id}
    details = EntryDetails(situation=Situation.SERVED, imported={"source": row.source, **named})
    return UsageRecord(
        opened=Opened(
            exchange_id=exchange_id,
            key_id=key.key_id,
            key_alias=key.alias,
            provider=provider,
            model=row.model,
            upstream_model=upstream_model,
            endpoint=ENDPOINT,
            streamed=False,
            started_at=row.at,
            price=price,
            cost=cost,
            prompt_tokens_estimate=0,  # no count is estimated
            completion_tokens_max=None,
            slot=0,
            dimensions=dimensions or UNSET,
            byok=UNSET if key.byok is None else key.byok,
        ),
        outcome=Outcome.SERVED,
        reading=Reading(row.usage, UsageSource.REPORTED),
        bills=BillableParts.EVERYTHING,
        events=0,
        bytes=0,
        duration_ms=0.0,
        details=details.stored(),
        stated_nusd_or_unset=UNSET if row.cost_nusd is None else row.cost_nusd,
    )
