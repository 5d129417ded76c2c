"""The records from the proxy to the ledger: `Opened` at admission, `UsageRecord` at the end of an exchange.

Invariants: An `Opened` is durable before the first response byte. Exactly one `UsageRecord` follows for each, from the
gateway or, after a crash, from recovery. Both encode as JSON and contain no prompt, no completion text and no secret.
A reader of an older version can read a newer record: fields are only added, with defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import astuple

from proxy.billing.dimensions import Dimensions
from proxy.billing.entries import EntryKind
from proxy.billing.money import Nusd
from proxy.metering.usage import TOKENS_MAX, Reading, Silence, Usage
from proxy.metering.wire.json_reader import strict_reader

# Ten times the highest count that a meter accepts: estimates and sums of several answers can pass that one.
COUNT_MAX = 10 * TOKENS_MAX
# Body bytes, nUSD held, and nUSD per unit (a million USD): far above all real ones, far below the ledger's 64 bits.
AMOUNT_MAX = 10**15
# Of prices; the highest known one is 6.
MULTIPLIER_MAX = 1_000
# Unix seconds: the year 2200.
STARTED_MAX = 7_258_118_400.0


class Outcome(StrEnum):
    """How an exchange ended: every admitted exchange has exactly one outcome."""

    SERVED = "served"
    """The provider finished, and the client received everything."""
    CLIENT_LEFT = "client_left"
    """The client disconnected, or stopped reading for longer than the write-stall timeout."""
    UPSTREAM_FAILED = "upstream_failed"
    """The provider was unreachable, answered 5xx, broke off, or sent an error inside a 200 response."""
    UPSTREAM_STALLED = "upstream_stalled"
    """An idle timeout of the provider, or the total timeout of the exchange."""
    BUDGET_CUT = "budget_cut"
    """The key's budget was exhausted in mid-stream, or an operator stopped the stream (detail `failed`)."""
    SHUT_DOWN = "shut_down"
    """This proxy was stopped, and the grace time was over."""
    CRASHED = "crashed"
    """This proxy crashed; the exchange was settled from its last recorded progress."""
    REFUSED_UPSTREAM = "refused_upstream"
    """The provider refused the request (4xx): nothing was generated."""


class BillableParts(StrEnum):
    """Which part of the usage is billed."""

    EVERYTHING = "prompt+output"
    PROMPT = "prompt"
    OUTPUT = "output"
    NOTHING = "nothing"


class Rates(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Prices in nUSD per million tokens; they apply to prompts longer than `above_prompt_tokens`.

    A kind of tokens without a price of its own (None) costs the same as the other input or output tokens. Other units
    without a price are unpriced. 0 is a price.
    """

    input: int
    cached_input: int
    output: int
    above_prompt_tokens: int = 0
    cache_write: int | None = None
    cache_write_1h: int | None = None
    """None: as cache_write"""
    audio_input: int | None = None
    audio_output: int | None = None
    reasoning: int | None = None
    image: int | None = None
    """nUSD per generated image"""
    audio_hour: int | None = None
    """nUSD per hour; prices listed per second or per minute are whole numbers in it"""
    characters: int | None = None
    """nUSD per million characters"""
    searches: int | None = None
    """nUSD per 1,000 searches"""
    request: int | None = None
    """nUSD for each request whose prompt is billed, independent of its usage"""
    image_input: int | None = None
    image_output: int | None = None
    file_searches: int | None = None
    """nUSD per 1,000 searches in files"""
    pages: int | None = None
    """nUSD per 1,000 pages"""
    annotated_pages: int | None = None
    """nUSD per 1,000 annotated pages, instead of `pages`; None: the price of `pages`"""
    cached_audio_input: int | None = None
    """None: the price of `cached_input`"""
    cached_image_input: int | None = None
    """None: the price of `cached_input`"""


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """A versioned price list of one model. Tiers are in rising order of `above_prompt_tokens`. Without tiers, only the
    cost that an answer states is a price."""

    version: str
    tiers: tuple[Rates, ...]
    service_tiers: Mapping[str, tuple[Rates, ...]] = msgspec.field(default_factory=dict)
    """the provider's name of a service tier (`priority`, `flex`, `batch`) → the price tiers that apply instead"""
    multipliers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """reason → multiplier of the prices of all tokens, a decimal or a fraction: `1.1`, `5/3`. The reason is a fact of
    the answer (`speed:fast`) or of the whole list (`host:eu.api.openai.com`)"""
    stated: tuple[str, ...] = ()
    """multipliers of the cost that an answer states. If there are any, the stated cost is the price, and the list
    applies to answers without one. Empty: the list applies to every answer"""
    lacking: tuple[str, ...] = ()
    """`input`, `output` or both, if no tier has a price for it; the tiers have 0. Usage of such tokens is unpriced"""


class PricedUsage(msgspec.Struct, frozen=True):
    """Usage of another model for one answer, with its price lists."""

    model: str
    usage: Usage
    price: Price | None
    """see `Opened.price`"""
    cost: Price | None
    """see `Opened.cost`"""


class Fallback(msgspec.Struct, frozen=True):
    """Why another model serves the request than the one that the client requested."""

    model: str
    """the requested model"""
    limit: str
    """id of the rule that refused it"""


class Attempt(msgspec.Struct, frozen=True):
    """A failed request to an earlier provider of the exchange; nothing of it went to the client."""

    provider: str
    upstream_model: str
    failed: str
    """the reason, in a few words of Tokenweir's"""
    status: int | None
    """HTTP status of the response; None: the request did not reach the provider"""
    started_at: float
    """Unix seconds, UTC"""
    duration_ms: float


class BackgroundRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to poll an answer that the provider generates in the background."""

    response_id: str
    dialect: str
    project_id: str
    """the project of the key"""
    until: float
    """Unix seconds; at this time the proxy cancels the answer at the provider"""
    credential: str | None = None
    """the name of the provider's credential, if it has several"""
    query: str = ""


class Opened(msgspec.Struct, frozen=True):
    """An exchange at admission; written again on failover to another provider. Times: Unix seconds, UTC."""

    exchange_id: str
    """UUIDv7, generated by the proxy, never by the client"""
    key_id: str
    key_alias: str
    provider: str
    model: str
    """the name in the client's request"""
    upstream_model: str
    endpoint: str
    streamed: bool
    started_at: float
    price: Price | None
    """price list of the charge to the key's owner; None: no price is known (`unpriced`)"""
    cost: Price | None
    """price list of the provider's cost; None: unknown"""
    prompt_tokens_estimate: int
    completion_tokens_max: int | None
    """n × the limit on output tokens of the request or of the model; None: no limit is known"""
    slot: int
    """index in the progress table"""
    bill: Mapping[str, str] = msgspec.field(default_factory=dict)
    """the provider's billing policy where it differs from the default: situation → `BillableParts` value"""
    reserved_nusd: Nusd | None = msgspec.field(default=None, name="held_usd")
    """nUSD reserved at admission; None: no money limit applies to the key"""
    attempts: tuple[Attempt, ...] = ()
    """failed requests to earlier providers, in chronological order"""
    background: BackgroundRun | msgspec.UnsetType = msgspec.UNSET
    """not written unless the provider generates the answer in the background"""
    asked: Usage | msgspec.UnsetType = msgspec.UNSET
    """usage that follows from the request, for an answer that shows nothing; not written if there is none"""
    silence: Silence | msgspec.UnsetType = msgspec.UNSET
    """hidden tokens by the time to the first word, for a model that hides reasoning; not written if unknown"""
    echoes: bool | msgspec.UnsetType = msgspec.UNSET
    """the answer repeats the prompt, so that its text does not prove that the limit was exceeded; not written if not"""
    dimensions: Dimensions | msgspec.UnsetType = msgspec.UNSET
    """the ids of the values of its dimensions; not written if it has none"""
    fallback: Fallback | msgspec.UnsetType = msgspec.UNSET
    """not written unless `model` is the fallback model of a limit"""
    byok: str | msgspec.UnsetType = msgspec.UNSET
    """the terms by which an exchange with the client's own credential is billed, see `byok.py`; not written for other
    exchanges"""


class InvalidRecordError(ValueError):
    """A record with a number that no proxy writes. The message quotes nothing but that number."""


class RecordEnvelope(msgspec.Struct):
    """The part of a record that is readable in every version: the exchange that it closes."""

    class Of(msgspec.Struct):
        """The record's `Opened`."""

        exchange_id: str

    opened: Of
    version: int = 1


class _KeyEnvelope(msgspec.Struct):
    class Of(msgspec.Struct):
        key_id: str

    opened: Of


_envelope, _key_envelope = strict_reader(RecordEnvelope), strict_reader(_KeyEnvelope)


def exchange_id_in(payload: bytes) -> str | None:
    """The exchange that a record of any version closes. `payload`: its JSON; None if not even that can be read."""
    record = _envelope(payload)
    return None if record is None else record.opened.exchange_id


def key_id_in(payload: bytes) -> str | None:
    """The key of a record of any version. `payload`: its JSON; None if it cannot be read."""
    record = _key_envelope(payload)
    return None if record is None else record.opened.key_id


class UsageRecord(msgspec.Struct, frozen=True):
    """One ended exchange: sufficient to derive its ledger entry."""

    opened: Opened
    outcome: Outcome
    reading: Reading
    bills: BillableParts
    events: int
    """SSE events sent to the client; after a crash at least as many as it received"""
    bytes: int
    """body bytes sent to the client; after a crash at least as many as it received"""
    duration_ms: float
    first_token_ms: float | None = None
    finish_reason: str | None = None
    provider_response_id: str | None = None
    details: Mapping[str, Any] = msgspec.field(default_factory=dict)
    kind: str = EntryKind.USAGE
    seq: int = 0
    version: int = 1
    other_models: tuple[PricedUsage, ...] | msgspec.UnsetType = msgspec.UNSET
    """usage of other models, not included in `reading`; not written if there is none"""
    stated_nusd_or_unset: Nusd | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="stated_usd")
    """the cost that the provider states, in nUSD; not written if it states none"""

    @property
    def others(self) -> tuple[PricedUsage, ...]:
        return () if self.other_models is msgspec.UNSET else self.other_models

    @property
    def stated_nusd(self) -> Nusd | None:
        return None if self.stated_nusd_or_unset is msgspec.UNSET else self.stated_nusd_or_unset


def validate_record(record: UsageRecord) -> None:
    """Raise InvalidRecordError for a record that would book what no exchange can cost.

    To be called where records come from outside the process: a queue can be written by others.
    """
    if record.kind != EntryKind.USAGE:
        raise InvalidRecordError("kind is not usage")
    opened, reading, asked, others = record.opened, record.reading, record.opened.asked, record.others
    counts: set[float | None] = {
        *astuple(reading.usage), reading.hidden_tokens, opened.prompt_tokens_estimate, record.events, record.seq,
        record.duration_ms, record.first_token_ms, reading.longest_prompt_tokens, reading.hidden_by_time,
    }  # fmt: skip
    counts.update(*[astuple(one.usage) for one in others], () if asked is msgspec.UNSET else astuple(asked))
    _check_range("counts", counts, COUNT_MAX)
    _check_range("sizes", {record.bytes, opened.reserved_nusd, record.stated_nusd}, AMOUNT_MAX)
    _check_range("times", {opened.started_at}, STARTED_MAX)
    for price in (opened.price, opened.cost, *[list_ for one in others for list_ in (one.price, one.cost)]):
        if price is not None:
            _validate_price(price)


def _validate_price(price: Price) -> None:
    for tiers in (price.tiers, *price.service_tiers.values()):
        for rates in tiers:
            _validate_rates(rates)
    if price.multipliers:
        _check_range("multipliers", {*map(_multiplier, price.multipliers.values())}, MULTIPLIER_MAX)


@lru_cache(maxsize=1_024)
def _validate_rates(rates: Rates) -> None:
    _check_range("prices", {*astuple(rates)}, AMOUNT_MAX)


@lru_cache(maxsize=1_024)
def _multiplier(text: str) -> float:
    try:
        return float(multiplier(text))
    except ValueError:
        raise InvalidRecordError("one of its multipliers is no number") from None


def multiplier(text: str) -> Fraction:
    """A multiplier of prices, `1.1` or `5/3`; raises ValueError."""
    if not _MULTIPLIER.fullmatch(text):  # not 1e999999999
        raise ValueError("is no multiplier")
    return Fraction(text)


_MULTIPLIER = re.compile(r"\d{1,9}(\.\d{1,9}|/[1-9]\d{0,8})?", re.ASCII)


def _check_range(of: str, numbers: Set[float | None], most: float) -> None:
    known = [number for number in numbers if number is not None]
    if known and (min(known) < 0 or max(known) > most):
        wrong = next(number for number in known if not 0 <= number <= most)
        raise InvalidRecordError(f"one of its {of} is {wrong}, not 0 to {most:g}")
