"""The end of an exchange: its record, as soon as the text that its estimate needs is counted; or its hand-over to the
background.

Invariants: the exchange is closed once, and no later than COUNT_S after its end. No reference to it is kept afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from proxy.billing.details import EntryDetails
from proxy.billing.record import Outcome
from proxy.gateway.exchange.body import Body, metered_anyway
from proxy.gateway.exchange.client_side import ClientSide
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.metering import Metering
from proxy.gateway.exchange.open_exchange import OpenExchange, outcome_of
from proxy.gateway.exchange.upstream_request import UpstreamRequest
from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.profile import Counted, Profile

# The longest wait of a record for its count: twice the work that can be queued before it.
COUNT_S = 2.0


class Ending:
    """Ends one exchange. Only this class writes its record. `details`: those of the record."""

    __slots__ = ("_asking", "_client", "_exchange", "_metering", "_recorded", "details", "is_counting")

    def __init__(
        self,
        open_exchange: OpenExchange,
        asking: UpstreamRequest,
        metering: Metering,
        client: ClientSide,
        recorded: Callable[[], None],
    ) -> None:
        """`recorded`: called when the record is written, if `record` did not write it."""
        self._exchange = open_exchange
        self._asking = asking
        self._metering = metering
        self._client = client
        self._recorded: Callable[[], None] | None = recorded
        self.details = EntryDetails()
        self.is_counting = False
        """the text of the answer is being counted"""

    def record(self, end: End, body: Body | None, *, asked_at: float, reads_on_since: float | None) -> None:
        """Write the record, or begin to count the text for it, or hand the exchange over. `asked_at`: when the request
        was sent to the provider that answered; `reads_on_since`: since when the answer was read for a client that is
        gone; None: it was not. Both by `time.monotonic`."""
        if self._exchange.bills is not None or self._exchange.handed_over or self.is_counting:
            return
        details, now = self.details, monotonic()
        held = self._asking.held
        if body is not None:
            metered: Metered | None = body.result or body.metered_anyway()
        else:
            metered = None if held is None else metered_anyway(partial(_held, held), lambda: held.bytes_seen)
        self._exchange.accepted = self._exchange.accepted or held is not None
        if body is not None:
            self._end_tape(body)
        if end is End.BUG:
            details.failed = "proxy_bug"
        if self._asking.use is not None:
            details.credential = self._asking.use.credential.name
        if reads_on_since is not None:
            details.read_on_ms = round((now - reads_on_since) * 1000, 3)
        first_token_at = None if body is None else body.relay.first_token_at
        self._exchange.silent_s = (now if first_token_at is None else first_token_at) - asked_at
        refusal = self._asking.refusal
        outcome = outcome_of(end, metered, status=None if refusal is None else refusal.answer.status)
        stored = self._metering.stored
        if stored.in_background and metered is not None and body is not None:
            headers = self._asking.headers()
            if stored.hand_over(outcome, metered, body.relay, body.provider, details=details, headers=headers):
                return
        if body is not None and metered is not None:
            is_empty = outcome is Outcome.UPSTREAM_FAILED and not metered.generated
            if not is_empty or (metered.failed is None and not metered.in_background):
                self._asking.ended(failed=is_empty)
        refused_bytes = 0 if refusal is None else len(refusal.body or b"")
        self.is_counting = close_counted(
            self._exchange,
            outcome,
            metered,
            self._counted,
            now=now,
            details=details,
            events=0 if body is None else body.relay.events,
            size=refused_bytes if body is None else body.relay.bytes,
            read=0 if body is None else body.relay.meter.bytes_seen,
            first_token_at=first_token_at,
        )

    def _end_tape(self, body: Body) -> None:
        """End the tape, and keep the complete answer for a repeated request with the same idempotency key."""
        relay, told = body.relay, self._client.told_error
        if self._client.taped is not None:
            whole = not told and (body.is_whole or relay.meter.done)
            self._client.taped.end(relay, self.details, whole=whole, error_sent=told)
        if body.is_whole and relay.kept is not None:
            self._exchange.keep(relay.kept, body.answer)

    def _counted(self) -> None:
        """The text of the answer was counted, or not in time."""
        self.is_counting = False
        if self._recorded is not None:
            self._recorded()

    def let_go(self) -> None:
        """The record is written: release the credential, and drop the reference to the exchange."""
        self._recorded = None
        if self._asking.use is not None:
            self._asking.release(None if self._exchange.handed_over else self._exchange.tokens)


def _held(meter: BodyMeter) -> Metered:
    """The result of an answer that ends before anything of it was relayed."""
    meter.give_up()
    return meter.close()


def close_counted(
    open_exchange: OpenExchange, outcome: Outcome, metered: Metered | None, recorded: Callable[[], None], **how: Any
) -> bool:
    """Close the exchange after its text is counted. Returns False if it was closed at once; else `recorded` is called
    when it is closed. `how`: further arguments of `OpenExchange.close`."""
    timer: asyncio.TimerHandle | None = None

    def on_counted(counted: Counted | None = None, prompt: Profile | None = None) -> None:
        nonlocal timer
        if timer is None:
            return  # too late: already closed
        timer.cancel()
        timer = None
        open_exchange.close(outcome, metered=metered, counted=counted, prompt=prompt, **how)
        recorded()

    if not open_exchange.count(outcome, metered, on_counted):
        open_exchange.close(outcome, metered=metered, **how)
        return False
    timer = asyncio.get_running_loop().call_later(COUNT_S, on_counted)
    return True
