"""The amount to reserve for an exchange before it begins: an upper bound of its charge. Pure.

Invariants: A quote is never less than the charge of an exchange that keeps its own limits, and is served at no higher
speed, tier or geography than it asks for. A quote has a maximum per request, so a request without a limit, or with an
absurd one, does not reserve a whole budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.billing.money import Nusd, nusd_rounded_half_up
from proxy.billing.pricing.prices import applied, multiplied, of_answer, parts_at_most
from proxy.billing.record import Price, Rates, multiplier
from proxy.metering.usage import NO_USAGE, NOT_SAID, ServedAs, Usage


class Quote(msgspec.Struct, frozen=True, gc=False):
    """The amounts to reserve."""

    nusd: Nusd
    input_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def completion_tokens(*, requested: int | None, n: int, default: int, model_max: int | None) -> int:
    """The most output tokens of all `n` choices: n × min(the request's limit or the default, the model's limit).

    `requested`: n × the request's limit per choice; None: the request sets none.
    """
    bound = completion_tokens_bound(requested=default * n if requested is None else requested, n=n, model_max=model_max)
    assert bound is not None
    return bound


def completion_tokens_bound(*, requested: int | None, n: int, model_max: int | None) -> int | None:
    """n × the lower of the request's limit and the model's limit; None: neither is known."""
    if requested is None:
        return None if model_max is None else n * model_max
    each = -(-requested // n)
    return n * (each if model_max is None else min(each, model_max))


def quote(
    price: Price | None,
    *,
    prompt_tokens: int,
    completion_tokens: int,
    nusd_max: Nusd,
    units: Usage = NO_USAGE,
    asked: ServedAs = NOT_SAID,
) -> Quote:
    """The amounts to reserve: at most `nusd_max`, and no money without a price.

    Every token is priced as the dearest kind that it may be (cache write, audio, reasoning), at the dearest service
    tier, because only the response states which one was used. `units`: upper bounds of the counts that are not tokens,
    as far as the request states them; searches are known only at the end. `asked`: what the request asks for, as far as
    the list multiplies prices for it.
    """
    if price is None or not price.tiers:
        return Quote(Nusd(0), prompt_tokens, completion_tokens)
    dearer: list[tuple[str, str]] = []
    if price.multipliers:  # what only an answer can say may not be said
        dearer = [by for by in applied(price, asked).items() if multiplier(by[1]) > 1 or not of_answer(by[0])]
    parts_max = max(
        [
            parts_at_most(multiplied(rates, *dearer), prompt_tokens, completion_tokens, units)
            for rates in _applicable(price, prompt_tokens)
        ]
    )
    return Quote(min(nusd_rounded_half_up(parts_max), nusd_max), prompt_tokens, completion_tokens)


def _applicable(price: Price, prompt_tokens: int) -> Sequence[Rates]:
    """All rates that may apply to a prompt of this length."""
    if len(price.tiers) == 1 and not price.service_tiers:
        return price.tiers
    return [
        rates
        for tiers in (price.tiers, *price.service_tiers.values())
        for index, rates in enumerate(tiers)
        if index == 0 or prompt_tokens > rates.above_prompt_tokens
    ]
