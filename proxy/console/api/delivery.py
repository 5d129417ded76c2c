"""Delivery: the sinks that entries are pushed to, and the records that could not be settled.

Invariant: no payload is shown. Operators only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import Engine

from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.foundation.times import iso_utc
from proxy.ledger.settling.dead_letters import count_open, read_open
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor

LETTERS_DEFAULT, LETTERS_MAX = 50, 500


class RejectedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a sink's server rejected."""

    entry_id: str
    settled_at: str
    reason: str


class SinkShown(msgspec.Struct, frozen=True, kw_only=True):
    """One sink."""

    object: Literal["sink"] = "sink"
    name: str
    kind: str
    state: Literal["never_run", "up_to_date", "behind", "failing"]
    sent: int
    pending: int
    """at most 1,000 are counted"""
    lag_s: float
    """age of the first pending entry"""
    last_sent_at: str | None
    failing_since: str | None
    failures: int
    """failures since the last success"""
    last_error: str | None
    rejected_count: int
    rejected: list[RejectedEntry]
    """the first 100"""


class Sinks(msgspec.Struct, frozen=True, kw_only=True):
    """The sinks of the configuration."""

    object: Literal["list"] = "list"
    listed: list[SinkShown] = msgspec.field(name="data")


class LettersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Page size."""

    limit: Annotated[int, Meta(ge=1, le=LETTERS_MAX)] = LETTERS_DEFAULT


class DeadLetterShown(msgspec.Struct, frozen=True, kw_only=True):
    """A record that could not be settled. `tokenweir dead-letters` retries and drops it."""

    object: Literal["dead_letter"] = "dead_letter"
    id: str
    exchange_id: str | None
    kind: str | None
    reason: str
    first_seen: str
    last_seen: str
    times_seen: int
    node: str | None


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """The open dead letters, oldest first."""

    object: Literal["list"] = "list"
    total_count: int
    listed: list[DeadLetterShown] = msgspec.field(name="data")


@dataclass(frozen=True, slots=True)
class DeliveryApi:
    """The routes `/v1/sinks` and `/v1/dead-letters`."""

    engine: Engine
    threads: BoundedExecutor
    sinks: Callable[[], Sequence[SinkShown]]
    """reads the ledger; raises OSError"""

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/sinks", summary="The progress of each sink.",
            serve=self.sink_list, answers={200: Sinks}, role=OperatorRole.READ,
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/dead-letters", summary="Records that could not be settled, oldest first.",
            serve=self.letters, query=LettersQuery, answers={200: DeadLetterPage}, role=OperatorRole.READ,
        )  # fmt: skip

    async def sink_list(self, _call: ApiCall) -> ApiReply:
        """All sinks. Raises OSError."""
        return ApiReply(Sinks(listed=list(await self.threads.run(self.sinks))))

    async def letters(self, call: ApiCall) -> ApiReply:
        """The open dead letters. Raises OSError."""
        query: LettersQuery = call.query
        total = await self.threads.run(count_open, self.engine)
        found = await self.threads.run(read_open, self.engine, query.limit) if total else []
        listed = [
            DeadLetterShown(
                id=one.id,
                exchange_id=one.exchange_id,
                kind=one.kind,
                reason=one.reason,
                first_seen=iso_utc(one.first_seen),
                last_seen=iso_utc(one.last_seen),
                times_seen=one.times_seen,
                node=one.node,
            )
            for one in found
        ]
        return ApiReply(DeadLetterPage(total_count=total, listed=listed))
