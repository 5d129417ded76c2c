"""Batches, and files at providers, as values; the ids and the quote of what a batch generates. Pure.

Invariant: the ids of a batch's lines follow from the batch and the lines' names: however often and by whomever the
results are read, each line has one entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from proxy.billing.dimensions import Dimensions
from proxy.billing.money import Nusd, nusd_rounded_half_up
from proxy.billing.pricing.prices import applied, multiplied, parts_at_most
from proxy.billing.record import Price
from proxy.metering.usage import NO_USAGE, ServedAs, Usage

BATCH_TIER = "batch"
"""the service tier of a batch's lines"""


class BatchState(StrEnum):
    """See the table in `gateway/batches`."""

    CREATING = "creating"
    RUNNING = "running"
    SETTLED = "settled"
    LOST = "lost"


UNFINISHED = (BatchState.CREATING, BatchState.RUNNING)


class Share(msgspec.Struct, frozen=True):
    """The lines of a batch for one model, that ask to be served alike. Sums are of all of them."""

    model: str
    """the name that the client used"""
    upstream_model: str
    lines: int
    prompt_tokens: int
    """estimated"""
    completion_tokens: int
    """largest possible number of completion tokens"""
    longest_prompt_tokens: int
    speed: str | None = None
    geography: str | None = None
    units: Usage = NO_USAGE
    """the counts that are not tokens, as far as the requests state them"""

    @property
    def served_as(self) -> ServedAs:
        """The terms at which the lines will be served."""
        return ServedAs(BATCH_TIER, self.speed, self.geography)


class BatchInput(msgspec.Struct, frozen=True):
    """The lines of an uploaded file, as read at its check."""

    endpoint: str
    shares: tuple[Share, ...]
    names: str
    """a digest of the names of all lines, in any order"""

    @property
    def lines(self) -> int:
        return sum(share.lines for share in self.shares)


class Terms(msgspec.Struct, frozen=True):
    """The prices of one model's lines, and their dimensions, fixed at admission."""

    model: str
    upstream_model: str
    price: Price | None
    cost: Price | None
    prompt_tokens: int
    """estimated average of one line"""
    names: tuple[str, ...] = ()
    """names of the lines with this model; empty: all lines that no other terms name"""
    dimensions: Dimensions | msgspec.UnsetType = msgspec.UNSET
    """dimensions of the batch, see `Opened.dimensions`"""


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of an object, and the provider that stores it."""

    api: str
    """`openai.files`"""
    provider: str
    credential: str | None
    """the name of the provider's credential, if it has several"""
    key_id: str
    project_id: str
    created_at: float
    """Unix seconds"""


class StoredFile(Owned, frozen=True, kw_only=True):
    """A file at a provider."""

    file_id: str
    purpose: str = ""
    input: BatchInput | None = None
    """the lines of a file that is the input of a batch"""
    made_by: str | None = None
    """exchange id of the batch whose results the file contains"""


class StoredBatch(Owned, frozen=True, kw_only=True):
    """A batch after its admission."""

    exchange_id: str
    batch_id: str | None
    """the provider's id of the batch; None: not known yet"""
    state: BatchState
    key_alias: str
    endpoint: str
    """the endpoint of all lines"""
    input_file: str | None
    lines: int
    reserved_nusd: Nusd | None
    """nUSD reserved at admission; None: no money limit applies to the key"""
    names: str
    """digest of the names of all lines, see `BatchInput.names`"""
    files: tuple[str, ...] = ()
    """ids of the files with results, after the end of the batch"""


class Results(msgspec.Struct, frozen=True):
    """The results of the lines, for the entry of the batch."""

    succeeded: int = 0
    failed: int = 0


def names_digest(digests: int) -> str:
    """`BatchInput.names`. `digests`: the sum of the digests of the names."""
    return f"{digests % (1 << 128):032x}"


def batch_quote(shares: Sequence[tuple[Share, Price | None]], *, nusd_max: Nusd) -> int:
    """The nUSD to reserve: an upper bound of the charges of lines that keep their limits. `nusd_max`: of one line."""
    return sum(_quote(share, price, nusd_max) for share, price in shares)


def _quote(share: Share, price: Price | None, nusd_max: Nusd) -> int:
    if price is None or not price.tiers:
        return 0
    tiers = price.service_tiers.get(BATCH_TIER, price.tiers)
    by = tuple(applied(price, share.served_as).items())
    likely = [one for one in tiers if one is tiers[0] or share.longest_prompt_tokens > one.above_prompt_tokens]
    parts = [
        parts_at_most(rates, share.prompt_tokens, share.completion_tokens, share.units)
        + (share.lines - 1) * parts_at_most(rates, 0, 0, NO_USAGE)
        for rates in (multiplied(one, *by) for one in likely)
    ]
    # Each line is rounded by itself.
    return min(nusd_rounded_half_up(max(parts)) + share.lines, share.lines * nusd_max)
