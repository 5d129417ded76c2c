"""The cost of a running stream: raises its reservation to the cost so far."""

from __future__ import annotations

from msgspec import UNSET, structs

from proxy.billing.pricing.prices import charge
from proxy.billing.record import BillableParts
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import BodyMeter
from proxy.metering.usage import NO_USAGE, Usage


class Spending:
    """The spending of one exchange. Call `folded` after each fold of its meter."""

    def __init__(self, open_exchange: OpenExchange, estimator: Estimator) -> None:
        self._open_exchange = open_exchange
        self._estimator = estimator
        price = open_exchange.opened.price
        self.limited = open_exchange.opened.reserved_nusd is not None and price is not None and price.tiers != ()
        """True if a budget limits the exchange"""

    def folded(self, meter: BodyMeter) -> None:
        """Raise the reservation to the cost so far."""
        if self.limited:
            price = self._open_exchange.opened.price
            assert price is not None
            spent = charge(price, self.usage(meter), BillableParts.EVERYTHING, meter.tally.served_as)
            self._open_exchange.reservation.grow(spent)

    def generated(self, meter: BodyMeter) -> int:
        """Estimated completion tokens so far."""
        opened = self._open_exchange.opened
        estimate = self._estimator.completion(
            self._open_exchange.model_key,
            meter.tally.evidence,
            completion_tokens_max=opened.completion_tokens_max,
            bytes_seen=meter.bytes_seen,
        )
        return (estimate if opened.echoes is UNSET else estimate.held_to(opened.completion_tokens_max)).tokens

    def usage(self, meter: BodyMeter) -> Usage:
        """The reported usage, or an estimate."""
        reported = meter.tally.usage or NO_USAGE
        prompt, completion = reported.prompt_tokens, reported.completion_tokens
        return structs.replace(
            reported,
            prompt_tokens=self._open_exchange.opened.prompt_tokens_estimate if prompt is None else prompt,
            completion_tokens=(
                completion if meter.done else max(completion or 0, reported.beside_audio(self.generated(meter)))
            ),
        )
