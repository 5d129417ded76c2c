"""A newer price book than that of the installed package: the file `price-book.json` in the data directory.

Invariants: the file has the format of the package's own data. It is read completely or refused, and replaced
completely. A process reads it when it starts. The book's version is a digest of the file's bytes: equal files have
equal versions everywhere. A long file is read in short steps, so that a thread that does it delays no other for long.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proxy.billing.money import usd_text
from proxy.billing.pricing.book import PriceBook, listed_at
from proxy.billing.record import Rates

if TYPE_CHECKING:
    from genai_prices.types import Provider

# The package's own data have 2 MB.
BYTES_MAX = 32 << 20
FETCH_S_MAX = 30.0
# A price that moves further is probably in another unit.
FACTOR_MAX = 3
# The package checks a provider's models in one call in C: 300 ms for a whole file, 20 ms for so many.
_MODELS_AT_ONCE = 20


class PriceFileError(ValueError):
    """The file is no price book, or cannot be fetched. The message is for the operator."""


class PriceChange(NamedTuple):
    """A price that differs. nUSD per unit, as in `Rates`; None: no price."""

    provider: str
    model: str
    price: str
    above_prompt_tokens: int
    old: int | None
    new: int | None

    @property
    def suspicious(self) -> bool:
        """True if the price is removed, or changed by more than FACTOR_MAX."""
        return self.old is not None and (self.new is None or too_far(self.old, self.new))

    @property
    def name(self) -> str:
        """`input above 200000 tokens`"""
        return f"{self.price} above {self.above_prompt_tokens} tokens" if self.above_prompt_tokens else self.price

    @property
    def text(self) -> str:
        """`input: 1.25 → 1.5`, in USD."""
        old, new = ("no price" if nusd is None else usd_text(nusd) for nusd in (self.old, self.new))
        return f"{self.name}: {old} → {new}"


def too_far(old: int, new: int) -> bool:
    """True if a price moves by more than FACTOR_MAX, to zero or from it."""
    return max(old, new) > FACTOR_MAX * min(old, new)


def path_in(data_dir: Path) -> Path:
    """The path of the file."""
    return data_dir / "price-book.json"


def price_book(data_dir: Path) -> PriceBook:
    """The price book of a data directory: the file's, or else the package's. Raises PriceFileError."""
    file = path_in(data_dir)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return PriceBook()
    except OSError as failure:
        raise PriceFileError(f"{file}: {failure.strerror}") from None
    return book_from(content, str(file))


def version_of(content: bytes) -> str:
    """The version of the book in this file."""
    return f"prices-{hashlib.sha256(content).hexdigest()[:8]}"


def book_from(content: bytes, source: str) -> PriceBook:
    """The book in a file of the package's format. Raises PriceFileError."""
    try:
        providers = [_provider(raw) for raw in raw_providers(content)]
    except Exception as wrong:  # noqa: BLE001  whatever a malformed file does to the package
        raise PriceFileError(f"{source}: is no price book in genai-prices' format: {type(wrong).__name__}") from None
    if not providers:
        raise PriceFileError(f"{source}: has no providers")
    return PriceBook(providers, version_of(content))


class RawProvider(NamedTuple):
    """A provider in a file."""

    fields: dict[str, Any]
    """the provider's fields, without its models"""
    models: list[msgspec.Raw]


def raw_providers(content: bytes) -> Iterator[RawProvider]:
    """The providers in a file. Raises MsgspecError."""
    for fields in msgspec.json.decode(content, type=list[dict[str, msgspec.Raw]]):
        models = msgspec.json.decode(fields.pop("models", b"[]"), type=list[msgspec.Raw])
        yield RawProvider({name: msgspec.json.decode(value) for name, value in fields.items()}, models)


def _provider(raw: RawProvider) -> Provider:
    from genai_prices.types import _providers_from_raw  # the package reads its own downloads with it, and has no other

    _check_patterns(raw.fields)
    provider: Provider = _providers_from_raw([raw.fields])[0]
    for first in range(0, len(raw.models), _MODELS_AT_ONCE):
        models = [msgspec.json.decode(model) for model in raw.models[first : first + _MODELS_AT_ONCE]]
        _check_patterns(models)
        some = {"id": "", "name": "", "api_pattern": "", "models": models}
        provider.models += _providers_from_raw([some])[0].models
    return provider


def _check_patterns(raw: Any) -> None:
    """Raises re.error: the package compiles a pattern when it is used first."""
    if isinstance(raw, dict):
        for name, value in raw.items():
            if name in ("regex", "api_pattern"):
                re.compile(value)
            else:
                _check_patterns(value)
    elif isinstance(raw, list):
        for one in raw:
            _check_patterns(one)


def read_list(file: Path) -> bytes:
    """The content of a file. Raises PriceFileError."""
    try:
        with file.open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
    except OSError as failure:
        raise PriceFileError(f"{file}: {failure.strerror}") from None
    if len(content) > BYTES_MAX:
        raise PriceFileError(f"{file}: is longer than {BYTES_MAX >> 20} MiB; is this a price book?")
    return content


def changes(old: PriceBook, new: PriceBook, at: float) -> Iterator[PriceChange]:
    """Every price that differs at `at` (Unix seconds), by provider and model."""
    before, after = (
        {
            (provider.id, model.id): listed_at(model, at).tiers
            for provider in book.providers
            for model in provider.models
        }
        for book in (old, new)
    )
    for name in sorted(before.keys() | after.keys()):
        yield from price_changes(*name, before.get(name, ()), after.get(name, ()))


def price_changes(
    provider: str, model: str, before: tuple[Rates, ...], after: tuple[Rates, ...]
) -> Iterator[PriceChange]:
    """The prices of a model that differ."""
    prices = [_prices(tiers) for tiers in (before, after)]
    for above, name in sorted(prices[0].keys() | prices[1].keys()):
        was, now = (one.get((above, name)) for one in prices)
        if was != now:
            yield PriceChange(provider, model, name, above, was, now)


def _prices(tiers: tuple[Rates, ...]) -> dict[tuple[int, str], int]:
    names = [name for name in Rates.__struct_fields__ if name != "above_prompt_tokens"]
    priced = ((rates.above_prompt_tokens, name, getattr(rates, name)) for rates in tiers for name in names)
    return {(above, name): rate for above, name, rate in priced if rate is not None}
