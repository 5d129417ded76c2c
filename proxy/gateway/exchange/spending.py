"""The cost of a running stream: raises its reservation to the cost and the tokens so far."""

from __future__ import annotations

from msgspec import UNSET, structs

from proxy.billing.limits import counted
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
        self._of_money = open_exchange.opened.reserved_nusd is not None and price is not None and price.tiers != ()
        self._of_quotas = bool(open_exchange.reservation.reserved.amounts)
        self.limited = self._of_money or self._of_quotas
        """True if a budget or a quota limits the exchange"""

    def folded(self, meter: BodyMeter) -> None:
        """Raise the reservation to the cost so far."""
        if not self.limited:
            return
        usage, reservation = self.usage(meter), self._open_exchange.reservation
        if self._of_money:
            price = self._open_exchange.opened.price
            assert price is not None
            reservation.grow(charge(price, usage, BillableParts.EVERYTHING, meter.tally.served_as))
        if self._of_quotas:
            reservation.grow_quotas(counted(usage))

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
