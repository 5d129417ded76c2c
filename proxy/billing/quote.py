"""The upper bound of what an exchange may cost, before it begins. Pure.

Law: never less than the charge of an exchange that keeps within its own limits; bounded per request, so that one that
names no limit, or an absurd one, does not keep a whole budget from others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.billing.money import nusd_rounded_half_up
from proxy.billing.prices import parts_at_most
from proxy.billing.record import Price, Rates
from proxy.metering.usage import NO_USAGE, Usage


class Quote(msgspec.Struct, frozen=True, gc=False):
    """What is to be held."""

    nusd: int
    tokens: int


def completion_tokens(*, asked: int | None, n: int, default: int, model_max: int | None) -> int:
    """How many tokens the answers may have: n × min(what is asked for or the default, the model's limit).

    `asked`: n × the limit of each answer, as the request's facts have it; None: it names none.
    """
    bound = completion_tokens_bound(asked=default * n if asked is None else asked, n=n, model_max=model_max)
    assert bound is not None
    return bound


def completion_tokens_bound(*, asked: int | None, n: int, model_max: int | None) -> int | None:
    """What the answers cannot be beyond: n × the lower of the request's limit and the model's; None: none is known."""
    if asked is None:
        return None if model_max is None else n * model_max
    each = -(-asked // n)
    return n * (each if model_max is None else min(each, model_max))


def quote(
    price: Price | None, *, prompt_tokens: int, completion_tokens: int, nusd_max: int, units: Usage = NO_USAGE
) -> Quote:
    """At most `nusd_max`. Without a price there is no money to hold.

    Every token counts as the dearest that it may turn out to be (written to a cache, audio, reasoning), in the dearest
    way of serving: how, the answer says. `units`: at most so much of what is not tokens, as far as a request tells;
    searches are the model's own idea, and only known at the end.
    """
    tokens = prompt_tokens + completion_tokens
    if price is None:
        return Quote(0, tokens)
    most = max(
        [parts_at_most(rates, prompt_tokens, completion_tokens, units) for rates in _reached(price, prompt_tokens)]
    )
    return Quote(min(nusd_rounded_half_up(most), nusd_max), tokens)


def _reached(price: Price, prompt_tokens: int) -> Sequence[Rates]:
    """Those that may hold for such a prompt."""
    if len(price.tiers) == 1 and not price.service_tiers:
        return price.tiers
    return [
        rates
        for tiers in (price.tiers, *price.service_tiers.values())
        for place, rates in enumerate(tiers)
        if place == 0 or prompt_tokens > rates.above_prompt_tokens
    ]
