"""The dimensions of one request: the values that its client sends or its key fixes, as value ids.

Invariant: a value that the key fixes replaces the client's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import astuple
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType
from multidict import CIMultiDictProxy

from proxy.billing.dimensions import (
    END_USER,
    NO_DIMENSIONS,
    RUN,
    RUN_CAP,
    Dimensions,
    SentDimensions,
    hashed,
    within_limits,
)
from proxy.billing.keys import ApiKey
from proxy.billing.limit_rules import CAPS, EACH_CAP, EACH_RUN, cap_scope, missing_dimension
from proxy.billing.limits import Scope
from proxy.billing.money import nusd_from_usd
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.gateway.dimensions.sources import OwnHeaders, SourceReader
from proxy.http import errors
from proxy.keys.access import KeyAccess
from proxy.settings.dimensions import DimensionSettings

# Lists of presets of keys.
READERS_MAX = 64


class _Rules:
    """The settings, prepared for requests."""

    def __init__(self, settings: DimensionSettings) -> None:
        self.own = OwnHeaders(*astuple(settings.headers))
        self.default = SourceReader(settings.sources, self.own)
        self.readers: dict[tuple[str, ...], SourceReader] = {}
        """list of presets of a key → its reader"""
        self.hashes_end_users = settings.hash_end_users
        self.new_values_max = settings.new_values_per_key_hour

    def reader(self, presets: tuple[str, ...] | None) -> SourceReader:
        """The reader of these presets; None: the presets of the settings."""
        if presets is None:
            return self.default
        if presets not in self.readers:
            if len(self.readers) >= READERS_MAX:
                self.readers.clear()
            self.readers[presets] = SourceReader(presets, self.own)
        return self.readers[presets]


class RequestDimensions:
    """Reads the dimensions of requests, and looks up their value ids."""

    def __init__(self, settings: DimensionSettings, ids: DimensionIds, pepper: bytes) -> None:
        """`pepper`: that of the keys."""
        self._ids = ids
        self._pepper = pepper
        self._rules = _Rules(settings)

    def prepared(self, settings: DimensionSettings) -> Callable[[], None]:
        """Returns a function that switches to these settings."""
        return partial(self._use, _Rules(settings))

    def _use(self, rules: _Rules) -> None:
        self._rules, self._ids.new_values_max = rules, rules.new_values_max

    def sent(
        self, key: ApiKey, headers: CIMultiDictProxy[str], dialect: str, document: Mapping[str, Any]
    ) -> SentDimensions:
        """The values of a request. `dialect`: its name. Raises ApiError for an invalid header of our own."""
        of_key = key.dimensions
        if of_key is None:
            sent = self._rules.default.read(headers, dialect, document)
        else:
            sent = self._rules.reader(of_key.sources).read(headers, dialect, document)
            sent = within_limits({**of_key.fixed, **sent, **of_key.fixed}.items())
        return {**sent, **_caps_of(key)} if key.caps else sent

    async def ids(self, key: ApiKey, sent: SentDimensions) -> Dimensions:
        """The value ids of `sent`; a cap in it is set for its run. Raises ApiError if a cap cannot be stored, but for
        no other outage."""
        cap, caps = sent.get(RUN_CAP), _caps_of(key)
        if cap is not None or caps:
            sent = {name: value for name, value in sent.items() if name != RUN_CAP and name not in caps}
        if self._rules.hashes_end_users and END_USER in sent:
            sent = {**sent, END_USER: hashed(sent[END_USER], self._pepper)}
        ids = await self._ids.of(key, sent)
        if cap is not None:
            await _stored(self._ids.lower_cap((key.key_id, ids[RUN]), nusd_from_usd(cap)), of_run=True)
        for of_key in key.caps:
            await _stored(self._ids.keep_cap(key, of_key), of_run=False)
        return {**ids, **caps} if caps else ids

    def levels(
        self,
        key: ApiKey,
        access: KeyAccess,
        model: str,
        dimensions: Dimensions | UnsetType,
        providers: Collection[str] = (),
    ) -> tuple[Scope, ...]:
        """The levels that a request counts against. `dimensions`: as `ids` has just returned them. `providers`: those
        that can serve the request. Raises ApiError if the request lacks a dimension that a rule requires."""
        known = NO_DIMENSIONS if dimensions is UNSET else dimensions
        missing = missing_dimension(access.rules, model, known, providers)
        if missing is not None:
            raise errors.missing_dimension(missing)
        levels, run = access.levels(model, known, providers), known.get(RUN)
        cap_nusd = None if run is None else self._ids.cap((key.key_id, run))
        if run is not None and cap_nusd is not None:
            levels = (*levels, cap_scope(EACH_RUN, key.key_id, run, cap_nusd))
        capped = zip(EACH_CAP, key.caps, strict=False)
        return (*levels, *(cap_scope(rule, key.key_id, cap.value_id, cap.nusd) for rule, cap in capped))


def _caps_of(key: ApiKey) -> dict[str, str]:
    """The dimensions by which the caps of a narrowed key are counted: their values are value ids already."""
    return {name: cap.value_id for name, cap in zip(CAPS, key.caps, strict=False)}


async def _stored(storing: Awaitable[None], *, of_run: bool) -> None:
    """Raises ApiError if the cap cannot be stored now."""
    try:
        await storing
    except OSError:
        raise errors.cap_unknown(of_run=of_run) from None
