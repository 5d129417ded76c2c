"""The records of a batch: one for each answered line, and one for the batch. Pure.

Invariant: records depend only on the batch, its terms and the provider's line, so that another process makes equal
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from proxy.billing.batch import BATCH_TIER, Results, StoredBatch, Terms
from proxy.billing.details import EntryDetails
from proxy.billing.ending import FREE, Ending, PricesOf, compared, record_of
from proxy.billing.record import BillableParts, Opened, Outcome, UsageRecord
from proxy.foundation.ids import derived_id
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.open_exchange import outcome_of
from proxy.gateway.upstream.body_end import metered_to_end
from proxy.metering.dialect import Dialect
from proxy.metering.estimator.estimate import Estimator, model_key, reading
from proxy.metering.metered import BodyMeter, Metered, OpaqueMeter
from proxy.metering.stored_objects.api import BatchStatus, ResultLine
from proxy.metering.usage import PromptEvidence


@dataclass(frozen=True, slots=True)
class LinePrices:
    """The prices of the lines of one model."""

    terms: Terms
    of: PricesOf
    """the prices of other models that serve a line"""
    bill: Mapping[str, str]
    """the provider's billing policy"""
    not_billed: frozenset[str]
    estimates_refuted: bool = False
    """refuted counts are estimated"""


class LineRecords:
    """Makes the records of one batch's lines."""

    def __init__(
        self,
        batch: StoredBatch,
        dialect: Dialect,
        prices: Sequence[LinePrices],
        status: BatchStatus,
        estimator: Estimator,
    ) -> None:
        """`prices`: the prices without names apply to all lines that the others do not name."""
        self._batch = batch
        self._dialect = dialect
        self._estimator = estimator
        self._duration_ms = _duration_ms(status)
        self._default = next(one for one in prices if not one.terms.names)
        self._named = {name: one for one in prices for name in one.terms.names}

    async def record(self, line: ResultLine, place: str, size: int) -> UsageRecord | None:
        """The record of a line; None: nothing is billed. `place`: the number of the line, if it has no name.
        `size`: the length of the line, of which `line` may be the beginning. Other tasks run while a long line is
        read."""
        if line.answer is None:
            return None
        meter: BodyMeter
        if line.failed is None:
            meter = self._dialect.plain_meter()
            meter.feed(line.answer)
        else:
            meter = opaque = OpaqueMeter()
            opaque.flags, opaque.bytes_seen = (line.failed,), size
        prices = self._named.get(line.custom_id or "", self._default)
        return self._record(line, line.custom_id or place, prices, await metered_to_end(meter), size)

    def _record(self, line: ResultLine, name: str, prices: LinePrices, metered: Metered, size: int) -> UsageRecord:
        batch, terms = self._batch, prices.terms
        free, outcome = terms.price == FREE, outcome_of(End.COMPLETE, metered)
        asked = Opened(
            exchange_id=derived_id(batch.exchange_id, name),
            key_id=batch.key_id,
            key_alias=batch.key_alias,
            provider=batch.provider,
            model=terms.model,
            upstream_model=terms.upstream_model,
            endpoint=batch.endpoint,
            streamed=False,
            started_at=batch.created_at,  # in the windows in which the batch was admitted
            price=FREE if free else terms.price,
            cost=FREE if free else terms.cost,
            prompt_tokens_estimate=0 if free else terms.prompt_tokens,
            completion_tokens_max=None,
            slot=0,
            bill=prices.bill,
            dimensions=terms.dimensions,
        )
        details = EntryDetails(batch_id=batch.batch_id, custom_id=line.custom_id)
        key = model_key(batch.provider, terms.upstream_model)
        if not free:
            bound = partial(self._estimator.broken_bound, key)
            metered = compared(metered, PromptEvidence(), details, bound, estimates=prices.estimates_refuted)
        read = reading(
            metered,
            estimator=self._estimator,
            model_key=key,
            prompt_tokens_estimate=asked.prompt_tokens_estimate,
            completion_tokens_max=None,
            bytes_seen=size,
            accepted=outcome is Outcome.SERVED,
        )
        read = structs.replace(read, service_tier=BATCH_TIER)
        ending = Ending(
            outcome=outcome,
            reading=read,
            metered=metered,
            accepted=True,
            delivered=not metered.evidence.empty,
            size=size,
            duration_ms=self._duration_ms,
            not_billed=prices.not_billed,
            details=details,
        )
        return record_of(asked, ending, prices.of)


def batch_record(
    batch: StoredBatch,
    path: str,
    terms: Sequence[Terms],
    outcome: Outcome,
    results: Results,
    status: BatchStatus | None,
) -> UsageRecord:
    """The record of the batch itself, which costs nothing. `path`: that of the API. `status`: the status at
    the end; None: unknown."""
    first = terms[0]
    opened = Opened(
        exchange_id=batch.exchange_id,
        key_id=batch.key_id,
        key_alias=batch.key_alias,
        provider=batch.provider,
        model=first.model,
        upstream_model=first.upstream_model,
        endpoint=path,
        streamed=False,
        started_at=batch.created_at,
        price=None,
        cost=None,
        prompt_tokens_estimate=0,
        completion_tokens_max=None,
        slot=0,
        reserved_nusd=batch.reserved_nusd,
        dimensions=first.dimensions,
    )
    found = {"lines": batch.lines, "succeeded": results.succeeded, "failed": results.failed}
    ending = Ending(
        outcome=outcome,
        accepted=True,
        delivered=False,
        bills=BillableParts.NOTHING,
        duration_ms=0.0 if status is None else _duration_ms(status),
        details=EntryDetails(
            batch=found if status is None else {**found, "status": status.word}, batch_id=batch.batch_id
        ),
    )
    return record_of(opened, ending)


def _duration_ms(status: BatchStatus) -> float:
    """The duration of the batch, by the provider's clock."""
    return max(0.0, round(((status.ended_at or status.created_at) - status.created_at) * 1000, 3))
