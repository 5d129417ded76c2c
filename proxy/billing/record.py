"""The message from the proxy to the ledger, and its first half that is written before a byte moves.

Law: an `Opened` is durable before the first response byte; exactly one `UsageRecord` follows for each, from the
gateway or, after a crash, from recovery. Both are plain values that encode as JSON and hold no prompt, no
completion text and no secret. A reader of an older version must read a newer record: fields are only added,
with defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from proxy.billing.entries import EntryKind
from proxy.metering.usage import Reading


class Outcome(StrEnum):
    """How an exchange ended. A closed set: every admitted exchange ends in exactly one."""

    SERVED = "served"
    """The provider finished and the client was there to the end."""
    CLIENT_LEFT = "client_left"
    """The client closed, or stopped reading for longer than the write-stall timeout."""
    UPSTREAM_FAILED = "upstream_failed"
    """The provider could not be reached, answered 5xx, broke off, or sent an error inside a 200."""
    UPSTREAM_STALLED = "upstream_stalled"
    """The provider was silent for too long, or the exchange took longer than its total timeout."""
    BUDGET_CUT = "budget_cut"
    """The key's budget ran out in mid-stream."""
    SHUT_DOWN = "shut_down"
    """This proxy was told to stop and the grace time was over."""
    CRASHED = "crashed"
    """This proxy died; the exchange was settled from its last recorded progress."""
    REFUSED_UPSTREAM = "refused_upstream"
    """The provider refused the request (4xx): nothing was generated."""


class BillableParts(StrEnum):
    """Which tokens of a reading are billed."""

    EVERYTHING = "prompt+output"
    PROMPT = "prompt"
    OUTPUT = "output"
    NOTHING = "nothing"


class Rates(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Prices of tokens in nUSD per million. `above_prompt_tokens`: they hold when the prompt is longer than that.

    A part of the tokens that has no price of its own (None) costs what the rest of them does; what is not tokens and
    has no price is not priced. A price of 0 is a price.
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
    """nUSD per image made"""
    audio_hour: int | None = None
    """nUSD per hour: what anybody lists by the second or the minute is whole in it"""
    characters: int | None = None
    """nUSD per million characters"""
    searches: int | None = None
    """nUSD per 1,000 searches"""
    request: int | None = None
    """nUSD for each request of which the prompt is billed, whatever it used"""


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """One price list for one model, with the name of its version. Tiers in rising order of `above_prompt_tokens`."""

    version: str
    tiers: tuple[Rates, ...]
    service_tiers: Mapping[str, tuple[Rates, ...]] = msgspec.field(default_factory=dict)
    """the provider's word for a way of serving (`priority`, `flex`, `batch`) → the tiers that hold for it instead"""


class Attempt(msgspec.Struct, frozen=True):
    """A provider that was asked before the one that has the exchange now, and gave nothing for the client."""

    provider: str
    upstream_model: str
    failed: str
    """why, in a few words of ours"""
    status: int | None
    """HTTP status of its answer; None: the request never reached it"""
    started_at: float
    """Unix seconds, UTC"""
    duration_ms: float


class Opened(msgspec.Struct, frozen=True):
    """All that is known of an exchange at admission, and of who has it: written anew when another provider gets it.
    Times: Unix seconds, UTC. Tokens: integers."""

    exchange_id: str
    """UUIDv7, made here, never by the client"""
    key_id: str
    key_alias: str
    provider: str
    model: str
    """the name the client asked for"""
    upstream_model: str
    endpoint: str
    streamed: bool
    started_at: float
    price: Price | None
    """what the key's owner is billed; None: no price is known (`unpriced`)"""
    cost: Price | None
    """what the provider charges us; None: unknown"""
    prompt_tokens_estimate: int
    completion_tokens_max: int | None
    """n × the request's limit on output tokens, or the model's; None: no limit is known"""
    slot: int
    """index in the progress table"""
    bill: Mapping[str, str] = msgspec.field(default_factory=dict)
    """the provider's billing policy where it differs from the default: situation → Bills"""
    held_usd: int | None = None
    """nUSD that it kept from others at admission; None: nothing limits what its key spends"""
    attempts: tuple[Attempt, ...] = ()
    """in the order in which they were made"""


class UsageRecord(msgspec.Struct, frozen=True):
    """One ended exchange: enough, by itself, to write its ledger entry."""

    opened: Opened
    outcome: Outcome
    reading: Reading
    bills: BillableParts
    events: int
    """SSE events passed to the client; after a crash never fewer than it got"""
    bytes: int
    """body bytes passed to the client; after a crash never fewer than it got"""
    duration_ms: float
    first_token_ms: float | None = None
    finish_reason: str | None = None
    provider_response_id: str | None = None
    details: Mapping[str, Any] = msgspec.field(default_factory=dict)
    kind: str = EntryKind.USAGE
    seq: int = 0
    version: int = 1
