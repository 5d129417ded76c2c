"""The upper bound of what an exchange may cost, before it begins. Pure.

Law: never less than the charge of an exchange that keeps within its own limits; bounded per request, so that one that
names no limit, or an absurd one, does not keep a whole budget from others.
"""

from __future__ import annotations

import msgspec

from proxy.billing.money import nusd_rounded_half_up
from proxy.billing.prices import rates_for
from proxy.billing.record import Price


class Quote(msgspec.Struct, frozen=True, gc=False):
    """What is to be held."""

    nusd: int
    tokens: int


def completion_tokens(*, asked: int | None, n: int, default: int, model_max: int | None) -> int:
    """How many tokens the answers may have: n × min(what is asked for or the default, the model's limit).

    `asked`: n × the limit of each answer, as the request's facts have it; None: it names none.
    """
    each = default if asked is None else -(-asked // n)
    return n * (each if model_max is None else min(each, model_max))


def quote(price: Price | None, *, prompt_tokens: int, completion_tokens: int, nusd_max: int) -> Quote:
    """At most `nusd_max`. Without a price there is no money to hold."""
    tokens = prompt_tokens + completion_tokens
    if price is None:
        return Quote(0, tokens)
    rates = rates_for(price, prompt_tokens)
    dearest = max(rates.input, rates.cached_input)  # a cached token may be dearer, by a slip of the configuration
    nusd = nusd_rounded_half_up(prompt_tokens * dearest + completion_tokens * rates.output)
    return Quote(min(nusd, nusd_max), tokens)
