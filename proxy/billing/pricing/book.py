"""The built-in list prices: of the package `genai-prices`, and what it lacks, from a table of our own.

Invariant: a look-up that finds nothing is None, never a price of another provider's model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property, lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from proxy.billing.money import nusd_from_usd_rounded_half_up
from proxy.billing.pricing.prices import INSTEAD_OF_TOKENS
from proxy.billing.pricing.rules import NO_LIST
from proxy.billing.record import Price, Rates
from proxy.billing.units import BILLED_UNITS

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

# Cached look-ups, including misses: with the model "*", any client may send any name.
PRICES_KEPT = 4096
# No model has a longer name. Longer names are not looked up: a miss tries every pattern of the book.
MODEL_CHARS_MAX = 200
# Prices are looked up by the minute.
MINUTE_S = 60
_AWS = "aws"


class _Multiplier(NamedTuple):
    """A multiplier of the prices of all tokens that genai-prices lacks."""

    provider: str
    """the provider's id in the package"""
    model: str
    """pattern of the whole name at the provider"""
    reason: str
    """a fact of the answer, as in `Price.multipliers`; or the pattern of a host, after `host:`"""
    by: str


# Read on 2026-11-25; the version of a list that has one of these says so.
_READ = "20261125"
_CLAUDE_SINCE_4_5 = r"(?:claude-(?:opus|sonnet|haiku)-4-(?:[5-9]|1\d)|claude-[a-z]+-[5-9])\b.*"
_CLAUDE_SINCE_4_6 = r"(?:claude-(?:opus|sonnet|haiku)-4-(?:[6-9]|1\d)|claude-[a-z]+-[5-9])\b.*"
_DATED = r"(?:-\d{4}-\d\d-\d\d)?"
_OWN: Sequence[_Multiplier] = (
    # https://platform.claude.com/docs/en/about-claude/pricing: fast mode, data residency
    _Multiplier("anthropic", r"claude-opus-4-[67](?:-\d{8})?", "speed:fast", "6"),
    _Multiplier("anthropic", r"claude-opus-(?:4-8|5)(?:-\d{8})?", "speed:fast", "2"),
    _Multiplier("anthropic", _CLAUDE_SINCE_4_6, "geography:us", "1.1"),
    # The same page: batch processing, also of what is read from a cache or written to it
    _Multiplier("anthropic", r".*", "tier:batch", "1/2"),
    # The same page: Google's regional and multi-region endpoints, by the side of the global one.
    _Multiplier("google", _CLAUDE_SINCE_4_5, r"host:.+-aiplatform\.googleapis\.com", "1.1"),
    _Multiplier("google", _CLAUDE_SINCE_4_5, r"host:aiplatform\.[a-z]+\.rep\.googleapis\.com", "1.1"),
    # https://openai.com/api-priority-processing, and the standard prices of the same models
    _Multiplier(
        "openai", rf"gpt-(?:5|5\.1|5\.2|5\.4|5\.4-mini|5-codex|5\.1-codex|4\.1-nano){_DATED}", "tier:priority", "2"
    ),
    _Multiplier("openai", rf"gpt-5-mini{_DATED}", "tier:priority", "1.8"),
    _Multiplier("openai", rf"(?:gpt-4\.1|gpt-4\.1-mini|o3){_DATED}|gpt-4o-2024-05-13", "tier:priority", "1.75"),
    _Multiplier("openai", r"gpt-4o(?:-2024-08-06|-2024-11-20)?", "tier:priority", "1.7"),
    _Multiplier("openai", rf"gpt-4o-mini{_DATED}", "tier:priority", "5/3"),
    _Multiplier("openai", rf"o4-mini{_DATED}", "tier:priority", "20/11"),
    # https://developers.openai.com/api/docs/guides/flex-processing: at the prices of the Batch API, which are half
    _Multiplier("openai", r".*", "tier:flex", "1/2"),
    # https://developers.openai.com/api/docs/guides/batch
    _Multiplier("openai", r".*", "tier:batch", "1/2"),
    # https://developers.openai.com/api/docs/guides/data-residency: models since 2026-03-05, which GPT-5.4 was the first
    _Multiplier("openai", r"gpt-(?:5\.[4-9]|[6-9]).*", r"host:[a-z]{2}\.api\.openai\.com", "1.1"),
    # https://docs.x.ai/developers/advanced-api-usage/regions
    _Multiplier("x-ai", r"grok-.*", r"host:us\.api\.x\.ai", "1.1"),
    # https://ai.google.dev/gemini-api/docs/optimization. Priority costs 75 to 100 % more, by model: it is not here.
    _Multiplier("google", r"gemini-.*", "tier:flex", "1/2"),
)


# Hosts of Bedrock that the package does not know: private endpoints, those for FIPS, and that of its other API.
_BEDROCK = re.compile(
    r"(?:.+\.)?bedrock-(?:runtime|mantle)(?:-fips)?\.[a-z0-9-]+\.(?:vpce\.)?(?:amazonaws\.com|api\.aws)"
)
# The name of a model of Bedrock within an ARN. That of a profile of one's own is not in its ARN.
_ARN = re.compile(r"arn:aws[a-z-]*:bedrock:[^/]*:(?:foundation-model|inference-profile)/(.+)")
# Hosts whose answers state what they are charged for, in their documentation: the sources of `metering/stated`.
_STATING = re.compile(
    r"(?:api\.)?openrouter\.ai|api\.perplexity\.ai|(?:[a-z0-9-]+\.)?api\.x\.ai|ai-gateway\.vercel\.sh|api\.venice\.ai"
    r"|api\.avian\.io"
)


class PriceBook:
    """The built-in list prices of known providers, from the installed `genai-prices` package and `_OWN`.

    The first look-up loads the book, which takes a good part of a second: a server calls `load` before it listens.
    """

    def __init__(self, providers: Sequence[Provider] | None = None, name: str = "") -> None:
        """`providers`: other lists than the package's, with the `name` of their version."""
        self.version = name if providers is not None else f"genai-prices-{version('genai-prices')}"
        if providers is not None:
            self.__dict__["providers"] = providers
        self._known = lru_cache(maxsize=PRICES_KEPT)(self._look_up)

    def load(self) -> None:
        _ = self.providers

    @cached_property
    def providers(self) -> Sequence[Provider]:
        """The lists, as the package has them."""
        from genai_prices.data import providers

        return providers

    def price(self, *, provider: str, base_url: str, model: str, at: float) -> Price | None:
        """List price of `model` at the time `at` (Unix seconds); None if the book has no price for it. At hosts
        that state what they charge, that is the price, with the list for answers that state nothing.

        The provider is looked up by `base_url`, else by the name `provider`, else by the model's name. If the provider
        found does not list the model, no other provider is tried.
        """
        if len(model) > MODEL_CHARS_MAX:
            return None
        return self._known(provider, base_url, model.lower(), int(at // MINUTE_S))

    def find(self, *, provider: str, base_url: str, model: str) -> ModelInfo | None:
        """The model of the book whose prices `price` takes."""
        listed_by = self._provider(provider, base_url, model)
        return None if listed_by is None else self._of_provider(listed_by, model)

    def _look_up(self, provider: str, base_url: str, model: str, minute: int) -> Price | None:
        price = self._listed(provider, base_url, model, minute)
        if _STATING.fullmatch(urlsplit(base_url).hostname or ""):
            return replace(price or NO_LIST, stated=("1",))
        return price

    def _listed(self, provider: str, base_url: str, model: str, minute: int) -> Price | None:
        listed_by = self._provider(provider, base_url, model)
        if listed_by is None or (listed := self._of_provider(listed_by, model)) is None:
            return None
        at = datetime.fromtimestamp(minute * MINUTE_S, UTC)
        tiers = _tiers(listed.get_prices(_deepseek_time(at) if listed.id in _OF_PEAK_DAYS else at))
        if not tiers:
            return None
        own = dict(_own(listed_by.id, _bare(listed_by.id, model), urlsplit(base_url).hostname or ""))
        name = f"{self.version}+{_READ}" if own else self.version
        return Price(name, tiers, {}, own, lacking=_lacking(listed.get_prices(at)))

    def _of_provider(self, listed_by: Provider, model: str) -> ModelInfo | None:
        found = listed_by.find_model(_bare(listed_by.id, model), all_providers=list(self.providers))
        return None if found is None or found.prices == [] else found

    def _provider(self, name: str, base_url: str, model: str) -> Provider | None:
        from genai_prices.data_snapshot import find_provider_by_id

        is_bedrock = _BEDROCK.fullmatch(urlsplit(base_url).hostname or "") is not None
        for provider in self.providers:
            if re.match(provider.api_pattern, base_url) or (is_bedrock and provider.id == _AWS):
                return provider
        by_model = (p for p in self.providers if p.model_match is not None and p.model_match.is_match(model))
        return find_provider_by_id(list(self.providers), name) or next(by_model, None)


def _bare(provider: str, model: str) -> str:
    """The name of a model, without the ARN that it may be in at Bedrock."""
    arn = _ARN.fullmatch(model) if provider == _AWS else None
    return model if arn is None else arn[1]


def _own(provider: str, model: str, host: str) -> Iterator[tuple[str, str]]:
    """The multipliers of our table, by their reasons."""
    for one in _OWN:
        if one.provider == provider and re.fullmatch(one.model, model):
            kind, _, pattern = one.reason.partition(":")
            if kind != "host":
                yield one.reason, one.by
            elif re.fullmatch(pattern, host):
                yield f"host:{host}", one.by


# DeepSeek's peak hours, of which the package knows no days: Monday to Friday in Beijing without public holidays; on
# every day from the first one up to the first week-end. https://api-docs.deepseek.com/quick_start/pricing
_OF_PEAK_DAYS = frozenset({"deepseek-flash", "deepseek-v4-flash", "deepseek-v4-pro"})
_PEAKS_FROM, _WEEKENDS_FROM = date(2026, 8, 17), date(2026, 8, 23)
_BEIJING = timezone(timedelta(hours=8))
# Those of 2026 since then; in later years a holiday is priced as the weekday that it is, which is too much.
_HOLIDAYS = frozenset(date(2026, month, day) for month, days in ((9, (25, 26, 27)), (10, range(1, 8))) for day in days)
_NOON = time(12, tzinfo=UTC)
_DAY_S = 86_400.0


def _deepseek_time(at: datetime) -> datetime:
    """The time to look up in genai-prices for `at`: on a day without peak hours, a time outside of the peak hours."""
    day = at.astimezone(_BEIJING).date()
    day_off = day >= _WEEKENDS_FROM and (day.weekday() >= 5 or day in _HOLIDAYS)
    return at if day >= _PEAKS_FROM and not day_off and at.date() == day else datetime.combine(day, _NOON)


class Listed(NamedTuple):
    """The prices of a model at one time."""

    tiers: tuple[Rates, ...]
    """empty: the model has no price"""
    lacking: tuple[str, ...]
    """the kinds of tokens without a price, see `Price.lacking`"""


def listed_at(model: ModelInfo, at: float) -> Listed:
    """The prices that the book has for a model at this time (Unix seconds), without those of our own table."""
    prices = model.get_prices(datetime.fromtimestamp(at, UTC)) if model.prices != [] else None
    return Listed((), ()) if prices is None else Listed(_tiers(prices), _lacking(prices))


def turning_points(model: ModelInfo, since: float) -> set[float]:
    """Times (Unix seconds) by which a model has had, from `since` on, each of its prices: by the starts of its lists,
    and by the hours that begin or end one."""
    from genai_prices.types import ModelPrice, StartDateConstraint

    if isinstance(model.prices, ModelPrice):
        return set()
    days, hours = {datetime.fromtimestamp(since, UTC).date()}, {time(tzinfo=UTC)}
    for constraint in (conditional.constraint for conditional in model.prices):
        if isinstance(constraint, StartDateConstraint):
            days.add(constraint.start_date)
        elif constraint is not None:
            hours |= {
                hour if hour.tzinfo else hour.replace(tzinfo=UTC)
                for hour in (constraint.start_time, constraint.end_time)
            }
    points = {datetime.combine(day, hour).timestamp() for day in days for hour in hours}
    return {point for point in points if point >= since - _DAY_S}


# Price in the book → name in `Rates`, and units of ours per unit of the book. For the same name, the later one wins.
_LISTED = tuple((theirs, unit.price, per) for unit in BILLED_UNITS for theirs, per in unit.listed)


def _tiers(listed: ModelPrice) -> tuple[Rates, ...]:
    """The book's tiers as `Rates`; empty if it has neither a price of input tokens nor one in their place."""
    more = {
        ours: (column, per) for theirs, ours, per in _LISTED if (column := getattr(listed, theirs, None)) is not None
    }
    if listed.input_mtok is None and more.keys().isdisjoint(INSTEAD_OF_TOKENS):
        return ()
    prompt, output = listed.input_mtok or _NO_PRICE, listed.output_mtok or _NO_PRICE
    # Cached tokens without a price in the book cost the same as other input; 0 is a price.
    cached = prompt if listed.cache_read_mtok is None else listed.cache_read_mtok
    columns = (prompt, cached, output, *(column for column, _ in more.values()))
    starts = {0, *(tier.start for column in columns for tier in getattr(column, "tiers", ()))}
    return tuple(
        Rates(
            input=_at(prompt, start),
            cached_input=_at(cached, start),
            output=_at(output, start),
            above_prompt_tokens=start,
            **{name: _at(column, start, per) for name, (column, per) in more.items()},
        )
        for start in sorted(starts)
    )


_NO_PRICE = Decimal(0)


def _lacking(listed: ModelPrice) -> tuple[str, ...]:
    """The value of `Price.lacking`: embeddings have no output price, speech has no token price."""
    tokens = (("input", listed.input_mtok), ("output", listed.output_mtok))
    return tuple(name for name, column in tokens if column is None)


def _at(column: Decimal | TieredPrices, start: int, per: int = 1) -> int:
    """The price in a column for prompts longer than `start`: nUSD for one `per`-th of the column's unit."""
    if isinstance(column, Decimal):
        return nusd_from_usd_rounded_half_up(column / per)
    applicable = [tier.price for tier in column.tiers if tier.start <= start]
    return nusd_from_usd_rounded_half_up((applicable[-1] if applicable else column.base) / per)
