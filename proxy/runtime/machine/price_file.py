"""A newer price book than that of the installed package: the file `price-book.json` in the data directory.

Invariants: the file has the format of the package's own data. It is read completely or refused, and replaced
completely. A process reads it when it starts. The book's version is a digest of the file's bytes: equal files have
equal versions everywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from proxy.billing.pricing.book import PriceBook
from proxy.billing.record import Rates

# The package's own data have 2 MB.
BYTES_MAX = 32 << 20
FETCH_S_MAX = 30.0
# A price that moves further is probably in another unit.
FACTOR_MAX = 3


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
        if self.old is None:
            return False
        return self.new is None or max(self.old, self.new) > FACTOR_MAX * min(self.old, self.new)


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


def book_from(content: bytes, source: str) -> PriceBook:
    """The book in a file of the package's format. Raises PriceFileError."""
    from genai_prices.types import _providers_from_raw  # the package reads its own downloads with it, and has no other

    try:
        providers = _providers_from_raw(json.loads(content))
    except Exception as wrong:  # noqa: BLE001  whatever a malformed file does to the package
        raise PriceFileError(f"{source}: is no price book in genai-prices' format: {type(wrong).__name__}") from None
    if not providers:
        raise PriceFileError(f"{source}: has no providers")
    return PriceBook(providers, f"prices-{hashlib.sha256(content).hexdigest()[:8]}")


def fetched(source: str) -> bytes:
    """The content of a file, or of an http or https URL. Raises PriceFileError."""
    try:
        if urlsplit(source).scheme in ("http", "https"):
            with urlopen(source, timeout=FETCH_S_MAX) as answer:  # noqa: S310  of these schemes
                content: bytes = answer.read(BYTES_MAX + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(BYTES_MAX + 1)
    except (OSError, URLError, ValueError) as failure:
        raise PriceFileError(f"{source}: {getattr(failure, 'strerror', None) or failure}") from None
    if len(content) > BYTES_MAX:
        raise PriceFileError(f"{source}: is longer than {BYTES_MAX >> 20} MiB; is this a price book?")
    return content


def changes(old: PriceBook, new: PriceBook, at: float) -> Iterator[PriceChange]:
    """Every price that differs at `at` (Unix seconds), by provider and model."""
    before, after = old.listed(at), new.listed(at)
    for provider, model in sorted(before.keys() | after.keys()):
        prices = [_prices(lists.get((provider, model), ())) for lists in (before, after)]
        for above, name in sorted(prices[0].keys() | prices[1].keys()):
            was, now = (one.get((above, name)) for one in prices)
            if was != now:
                yield PriceChange(provider, model, name, above, was, now)


def _prices(tiers: tuple[Rates, ...]) -> dict[tuple[int, str], int]:
    names = [name for name in Rates.__struct_fields__ if name != "above_prompt_tokens"]
    priced = ((rates.above_prompt_tokens, name, getattr(rates, name)) for rates in tiers for name in names)
    return {(above, name): rate for above, name, rate in priced if rate is not None}
