"""The cost of a running stream: raises its reservation, and cuts the stream if its key is set to and nothing is left.

Invariants: a stream is cut between two events, with an error event and without `[DONE]`. The cost until then is billed.
"""

from __future__ import annotations

import asyncio

from msgspec import structs

from proxy.billing.prices import charge
from proxy.billing.record import BillableParts
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.relay import Relay, RelayEnd
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.meter import BodyMeter
from proxy.metering.usage import NO_USAGE, Usage


class Spending:
    """The spending of one exchange. Call `folded` after each fold of its meter."""

    def __init__(self, closing: OpenExchange, estimator: Estimator, *, cuts: bool) -> None:
        """`cuts`: the stream is cut when the budget is exhausted (policy of the key)."""
        self._closing = closing
        self._reservation = closing.reservation
        self._estimator = estimator
        self._limited = closing.opened.held_usd is not None and closing.opened.price is not None
        self._relay: Relay | None = None
        self._short = False
        if cuts and self._limited:
            closing.reservation.on_short = self._ran_out

    def folded(self, meter: BodyMeter, relay: Relay) -> None:
        """Raise the reservation to the cost so far."""
        if not self._limited:
            return
        self._relay = relay
        price = self._closing.opened.price
        assert price is not None
        self._reservation.grow(charge(price, self.usage(meter), BillableParts.EVERYTHING))
        if self._short:  # later in this turn: the piece that was read is passed on first
            asyncio.get_running_loop().call_soon(self._cut)

    def generated(self, meter: BodyMeter) -> int:
        """Estimated completion tokens so far."""
        return self._estimator.completion(
            self._closing.model_key,
            meter.evidence,
            completion_tokens_max=self._closing.opened.completion_tokens_max,
            bytes_seen=meter.bytes_seen,
        ).tokens

    def usage(self, meter: BodyMeter) -> Usage:
        """The reported usage, or an estimate."""
        reported = meter.usage or NO_USAGE
        prompt, completion = reported.prompt_tokens, reported.completion_tokens
        return structs.replace(
            reported,
            prompt_tokens=self._closing.opened.prompt_tokens_estimate if prompt is None else prompt,
            completion_tokens=max(completion or 0, self.generated(meter)) if not meter.done else completion,
        )

    def _ran_out(self) -> None:
        self._short = True
        self._cut()

    def _cut(self) -> None:
        relay = self._relay
        if relay is not None and relay.whole and not relay.done.done():
            relay.cut(RelayEnd.BUDGET_CUT)
