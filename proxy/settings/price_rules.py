"""The settings of rules that change price lists.

Invariant: a rule has exactly one effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import time
from zoneinfo import ZoneInfo

from proxy.billing.pricing.rules import UTC, WEEKDAYS, Hours, PriceRule, PriceSide
from proxy.billing.record import Price
from proxy.settings.fields import FieldPath, FieldType, names, read_section, setting, settings_section
from proxy.settings.kinds import choice, choices, text, texts
from proxy.settings.prices import LIST, REASON, factor, moment

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_NAME_SHAPE = "1 to 64 of a-z 0-9 _ . -"
_WHO = re.compile(r"[^\x00-\x1f]{1,200}")
_MODELS = re.compile(r"[A-Za-z0-9@*_.:/+-]{1,200}", re.ASCII)
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|(24:00))", re.ASCII)


def _zone() -> FieldType:
    shape = "a time zone, `Asia/Shanghai`"

    def read(raw: object, at: FieldPath) -> ZoneInfo:
        try:
            return ZoneInfo(at.filled(raw) if isinstance(raw, str) else "")
        except (ValueError, OSError, KeyError):
            raise at.wrong(f"must be {shape}; or this machine has no time zones: install tzdata") from None

    return FieldType(shape, read)


def _hours() -> FieldType:
    shape = "times of day, `16:30-00:30`"

    def read(raw: object, at: FieldPath) -> Hours:
        match = _HOURS.fullmatch(raw) if isinstance(raw, str) else None
        if match is None:
            raise at.wrong(f"must be {shape}")
        begin = time(int(match[1]), int(match[2]))
        end = time(0) if match[5] else time(int(match[3]), int(match[4]))
        if begin == end:
            raise at.wrong("must not end when it begins; leave it out for the whole day")
        return Hours(begin, end)

    return FieldType(shape, read)


_MOMENT = FieldType("a date or a time (UTC)", moment)


def _who(of: str) -> FieldType:
    return texts(_WHO, f"the id or the {of}")


@settings_section
class PriceRuleSettings:
    """A rule as the operator writes it: conditions, all of which must hold, and one effect."""

    name: str
    changes: PriceSide = setting(
        choice(PriceSide),
        "the price that the key's owner is billed, or that the provider charges you",
        default=PriceSide.CHARGE,
    )
    keys: frozenset[str] = setting(_who("alias"), "keys", default=frozenset(), shown="all")
    projects: frozenset[str] = setting(_who("name"), "projects of the keys", default=frozenset(), shown="all")
    organizations: frozenset[str] = setting(_who("name"), "organizations of the keys", default=frozenset(), shown="all")
    models: frozenset[str] = setting(
        texts(_MODELS, "a model name, with `*` for any text"),
        "models as clients request them; for another model that an answer used, that model's name",
        default=frozenset(),
        shown="all",
    )
    providers: frozenset[str] = setting(
        texts(_NAME, "the name of a provider"), "providers", default=frozenset(), shown="all"
    )
    begins: float | None = setting(_MOMENT, "requests at or after this time", default=None, shown="all")
    ends: float | None = setting(_MOMENT, "requests before this time", default=None, shown="all")
    weekdays: tuple[str, ...] = setting(choices(WEEKDAYS), "days on which the hours begin", default=(), shown="all")
    hours: Hours | None = setting(_hours(), "requests in these hours", default=None, shown="all")
    time_zone: ZoneInfo = setting(_zone(), "time zone of the days and hours", default=UTC, shown="`UTC`")
    served_as: str | None = setting(
        text(REASON, "`tier:`, `speed:` or `geography:` and the provider's word"),
        "only answers that report this word, and only their token prices; needs `multiply`",
        default=None,
        shown="all",
    )
    multiply: str | None = setting(
        factor(), "factor of every price, combined with other rules: `0.9` is a discount of 10 %", default=None
    )
    stated: str | None = setting(
        factor(),
        "answers that state their cost are priced at that cost, times this number and the factors of other rules; "
        "other answers are priced by the list",
        default=None,
    )
    price: Price | None = setting(
        LIST, "a price list instead of the model's; the first matching rule counts", default=None
    )


_EFFECTS = ("multiply", "stated", "price")


def _rules(raw: object, at: FieldPath) -> Mapping[str, PriceRule]:
    rules: dict[str, PriceRule] = {}
    for name, below in names(raw, at, _NAME, _NAME_SHAPE).items():
        here = at.under(name)
        read: PriceRuleSettings = read_section(PriceRuleSettings, below, here, name=name)
        effects = [effect for effect in _EFFECTS if getattr(read, effect) is not None]
        if len(effects) != 1:
            raise here.wrong(f"must have exactly one of {', '.join(_EFFECTS)}")
        if read.served_as is not None and read.multiply is None:
            raise here.under("served_as").wrong("needs `multiply`: lists and stated costs do not depend on it")
        if read.begins is not None and read.ends is not None and read.ends <= read.begins:
            raise here.under("ends").wrong("must be later than `begins`")
        rules[name] = PriceRule(**{one.name: getattr(read, one.name) for one in fields(PriceRule)})
    return rules


PRICE_RULES = FieldType(_NAME_SHAPE, _rules, PriceRuleSettings, suffix=".<name>")
