"""Decides which prices of a fetched list apply, and which earlier prices stay.

Invariants: compared with the list before, no price moves by more than FACTOR_MAX, becomes zero or disappears, whenever
it applies (from `LOOK_BACK_S` ago on): a model with such a price keeps all of its earlier prices, and a new one gets
none. If a name would be looked up at another model with such a price, the whole list is refused. Equal lists before and
equal fetched lists give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proxy.billing.money import nusd_from_usd, usd_text
from proxy.billing.pricing.book import Listed, PriceBook, listed_at, turning_points
from proxy.billing.units import BILLED_UNITS, Unit, prices_of
from proxy.foundation.times import iso_utc
from proxy.runtime.machine.price_file import (
    PriceChange,
    PriceFileError,
    book_from,
    price_changes,
    raw_providers,
    too_far,
    version_of,
)
from proxy.settings.prices import usd_max

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

# Exchanges without a price are rated so long afterwards, by the list of their time.
LOOK_BACK_S = 31 * 86_400.0

Named = tuple[str, str, str]
"""provider, base URL and model, as they are configured"""
_Key = tuple[str, str]
"""provider and model, by their ids in a list"""


class ModelChange(NamedTuple):
    """A model whose prices differ."""

    provider: str
    model: str
    since: float
    """Unix seconds: exchanges that begin then or later"""
    prices: list[PriceChange]
    refused: str = ""
    """why the earlier prices stay; empty: the new ones apply"""

    def __str__(self) -> str:
        prices = ", ".join(one.text for one in self.prices)
        what = f"refused: {self.refused}" if self.refused else f"since {iso_utc(self.since)[:16]}Z"
        return f"{self.provider} {self.model}: {prices}; {what}"


class Accepted(NamedTuple):
    """The list that applies, and its changes to the list before."""

    content: bytes
    book: PriceBook
    changes: list[ModelChange]
    refused: list[ModelChange]


def accept(content: bytes, source: str, before: PriceBook, used: Iterable[Named], now: float) -> Accepted:
    """The parts of a fetched list that apply. `used`: the models that are looked up in the book. Raises PriceFileError:
    no part applies."""
    if version_of(content) == before.version:
        return Accepted(content, before, [], [])
    fetched = book_from(content, source)
    old, new = _models(before, source), _models(fetched, source)
    refused = {
        key: reason
        for key in sorted(old.keys() | new.keys())
        if (reason := _refusal(old.get(key), new.get(key), now)) is not None
    }
    if refused:
        content = _merged(content, before, old, refused.keys())
    book = book_from(content, source) if refused else fetched
    _check_names(before, book, used, source, now)
    return Accepted(
        content,
        book,
        list(_changes(old, _models(book, source), now)),
        [change._replace(refused=refused[change[:2]]) for change in _changes(old, new, now) if change[:2] in refused],
    )


def _models(book: PriceBook, source: str) -> dict[_Key, ModelInfo]:
    models: dict[_Key, ModelInfo] = {}
    for provider in book.providers:
        for model in provider.models:
            if models.setdefault((provider.id, model.id), model) is not model:
                raise PriceFileError(f"{source}: has {model.id} of {provider.id} twice")
    return models


def _refusal(old: ModelInfo | None, new: ModelInfo | None, now: float) -> str | None:
    """Why the new prices do not apply; None: they do."""
    if old is not None and new is not None and old.prices == new.prices:
        return None
    for at in _times(old, new, now):
        before, after = _at(old, at), _at(new, at)
        for above in sorted({rates.above_prompt_tokens for rates in (*before.tiers, *after.tiers)}):
            for unit in BILLED_UNITS:
                reason = _moved(_rate(before, unit, above), _rate(after, unit, above), unit)
                if reason is not None:
                    return f"{unit.price} {reason}"
    return None


def _moved(old: int | None, new: int | None, unit: Unit) -> str | None:
    if old == new:
        return None
    if new is None:
        return "disappears"
    if old is None:
        highest = nusd_from_usd(usd_max(unit))
        return None if 0 < new <= highest else f"is new, and {usd_text(new)}"
    return f"moves too far, {usd_text(old)} → {usd_text(new)}" if too_far(old, new) else None


def _times(old: ModelInfo | None, new: ModelInfo | None, now: float) -> list[float]:
    """The present first, then all times at which other prices may apply."""
    earliest = now - LOOK_BACK_S
    models = [model for model in (old, new) if model is not None]
    return [now, *sorted({earliest}.union(*(turning_points(model, earliest) for model in models)))]


def _at(model: ModelInfo | None, at: float) -> Listed:
    return Listed((), ()) if model is None else listed_at(model, at)


# A price that a list lacks → those that stand at 0 in its `Rates`.
_LACKED = {"input": {"input", "cached_input"}, "output": {"output"}}


def _rate(listed: Listed, unit: Unit, above: int) -> int | None:
    """The price that applies to a unit of prompts longer than `above`; None: none does."""
    tiers = [rates for rates in listed.tiers if rates.above_prompt_tokens <= above]
    if not tiers:
        return None
    lacked = set().union(*(_LACKED[name] for name in listed.lacking))
    rates = (getattr(tiers[-1], name) for name in prices_of(unit) if name not in lacked)
    return next((rate for rate in rates if rate is not None), None)


def _changes(old: dict[_Key, ModelInfo], new: dict[_Key, ModelInfo], now: float) -> Iterator[ModelChange]:
    for key in sorted(old.keys() | new.keys()):
        models = old.get(key), new.get(key)
        if None not in models and models[0].prices == models[1].prices:  # type: ignore[union-attr]
            continue
        for at in _times(*models, now):
            prices = list(price_changes(*key, _at(models[0], at).tiers, _at(models[1], at).tiers))
            if prices:
                yield ModelChange(*key, at, prices)
                break


def _check_names(before: PriceBook, after: PriceBook, used: Iterable[Named], source: str, now: float) -> None:
    """Raises PriceFileError if a name is looked up at a price that moves too far: by patterns, one model can take the
    requests of another."""
    same = _patterns(before) == _patterns(after)
    models = {provider.id: _model_patterns(provider) for provider in after.providers} if same else {}
    listed = (
        (provider.id, "", model.id)
        for provider in before.providers
        if models.get(provider.id) != _model_patterns(provider)
        for model in provider.models
    )
    for name, base_url, model in chain(used, listed):
        old, new = (book.find(provider=name, base_url=base_url, model=model.lower()) for book in (before, after))
        reason = _refusal(old, new, now)
        if reason is not None:
            raise PriceFileError(f"{source}: {model} of {name} would have the prices of another model: {reason}")


def _patterns(book: PriceBook) -> list[Any]:
    """The patterns by which the book finds a provider."""
    return [
        (one.id, one.api_pattern, one.provider_match, one.model_match, one.fallback_model_providers)
        for one in book.providers
    ]


def _model_patterns(provider: Provider) -> list[Any]:
    return [(model.id, model.match) for model in provider.models]


def _merged(content: bytes, before: PriceBook, old: dict[_Key, ModelInfo], refused: Iterable[_Key]) -> bytes:
    """The fetched list with the earlier prices of these models."""
    kept = {key: _encoded(old[key]) if key in old else b"" for key in refused}
    providers = []
    for fields_, models in raw_providers(content):
        of = fields_["id"]
        together = [kept.pop((of, msgspec.json.decode(model, type=_Id).id), bytes(model)) for model in models]
        together += [kept.pop(key) for key in list(kept) if key[0] == of]
        providers.append(_with_models(fields_, together))
    for one in before.providers:  # those that have disappeared
        models_of = [model for key, model in kept.items() if key[0] == one.id]
        providers += [_with_models(_raw(replace(one, models=[])), models_of)] if models_of else []
    return b"[" + b",".join(providers) + b"]"


class _Id(msgspec.Struct):
    id: str


def _with_models(fields_: dict[str, Any], models: Iterable[bytes]) -> bytes:
    encoded = msgspec.json.encode({**fields_, "models": []})
    return encoded.removesuffix(b"[]}") + b"[" + b",".join(filter(None, models)) + b"]}"


def _encoded(model: ModelInfo) -> bytes:
    return msgspec.json.encode(_raw(model))


def _raw(value: Any) -> Any:
    """A part of a list in its JSON form."""
    from genai_prices.types import ModelPrice

    if isinstance(value, ModelPrice):
        return {name: _raw(price) for name, price in vars(value).items() if price is not None}
    if is_dataclass(value):
        members = ((one.name.removesuffix("_"), getattr(value, one.name)) for one in fields(value) if one.init)
        return {name: _raw(member) for name, member in members if member is not None}
    if isinstance(value, dict):
        return {name: _raw(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_raw(one) for one in value]
    return value if isinstance(value, str | int | bool) else str(value)
