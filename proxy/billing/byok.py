"""Billing of requests with the client's own provider credential (BYOK): the client pays the provider. Pure.

Invariants: the charge to the key's owner follows from the list price and the key's terms at admission; the cost to the
operator is 0. The list price stays in the record, so that an entry shows the amount at list price.

Terms, as a key has them: `nothing`; a share of the list price, `5%`; a fee in USD for each request, `0.002`. People
write them as `free`, `5%` and `0.002usd/request`, so that no bare number can be taken for a share.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from msgspec import structs

from proxy.billing.money import nusd_from_usd, usd_text
from proxy.billing.pricing.prices import USD_EACH_MAX
from proxy.billing.record import Price, Rates

NOTHING = "nothing"
FREE_WORD, PER_REQUEST = "free", "usd/request"
SHARE_MAX = 1_000
"""largest share of the list price, in percent"""
# By this name, `multiplied` and `stated_charge` apply the factor to every price.
_REASON = "rule:byok"
_UNLISTED = "byok"


def terms_of(text: str) -> str:
    """The terms that a person has written, as a key has them. Raises ValueError."""
    text = text.strip().lower()
    if text == FREE_WORD:
        return NOTHING
    is_share = text.endswith("%")
    if not is_share and not text.endswith(PER_REQUEST):
        raise ValueError(_WRONG)
    try:
        number = Decimal(text.removesuffix("%").removesuffix(PER_REQUEST))
        if is_share:
            nusd_from_usd(number / 100)  # a factor of at most nine decimals
        else:
            number = Decimal(usd_text(nusd_from_usd(number)))
    except (InvalidOperation, ValueError):
        raise ValueError(_WRONG) from None
    if not 0 <= number <= (SHARE_MAX if is_share else USD_EACH_MAX):
        raise ValueError(_WRONG)
    return f"{_plain(number)}%" if is_share else _plain(number)


def terms_text(terms: str) -> str:
    """The terms of a key, as a person writes them."""
    if terms == NOTHING:
        return FREE_WORD
    return terms if terms.endswith("%") else f"{terms}{PER_REQUEST}"


_WRONG = (
    f"must be `{FREE_WORD}`, a share of the list price from 0% to {SHARE_MAX}% such as `5%`, or a fee from 0 to "
    f"{USD_EACH_MAX} USD for each request such as `0.002{PER_REQUEST}`"
)


def _plain(number: Decimal) -> str:
    """The number as text, without an exponent and without zeros at the end."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def byok_lists(terms: str, price: Price | None, cost: Price | None) -> tuple[Price | None, Price | None]:
    """The lists of the charge and of the cost. `price`, `cost`: the lists that the request would have with the
    operator's credential. `terms`: as `terms_of` returns them. None: unknown."""
    free = structs.replace(cost or _nothing(), multipliers={**(cost.multipliers if cost else {}), _REASON: "0"})
    if terms == NOTHING:
        return _nothing(), free
    if not terms.endswith("%"):
        return _nothing(request=nusd_from_usd(terms)), free
    if price is None:
        return None, free
    share = _plain(Decimal(terms[:-1]) / 100)
    return structs.replace(
        price, version=f"{price.version}+byok", multipliers={**price.multipliers, _REASON: share}
    ), free


def _nothing(request: int = 0) -> Price:
    """A list in which only the request itself has a price: `request` nUSD."""
    rates = {**dict.fromkeys(Rates.__struct_fields__, 0), "request": request}
    return Price(_UNLISTED, (Rates(**rates),))


def list_price(cost: Price | None) -> Price | None:
    """The list price behind a list of the cost that `byok_lists` made; None: the model has none."""
    if cost is None or cost.version == _UNLISTED:
        return None
    multipliers = {reason: factor for reason, factor in cost.multipliers.items() if reason != _REASON}
    return structs.replace(cost, multipliers=multipliers)
