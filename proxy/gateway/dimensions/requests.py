"""The dimensions of one request: the values that its client sends or its key fixes, as value ids.

Invariant: a value that the key fixes replaces the client's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
from proxy.billing.limit_rules import missing_dimension, run_scope
from proxy.billing.limits import Scope
from proxy.billing.money import nusd_from_usd
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.gateway.dimensions.sources import OwnHeaders, SourceReader
from proxy.http import errors
from proxy.keys.keyring import KeyAccess
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
            return self._rules.default.read(headers, dialect, document)
        sent = self._rules.reader(of_key.sources).read(headers, dialect, document)
        return within_limits({**of_key.fixed, **sent, **of_key.fixed}.items())

    async def ids(self, key: ApiKey, sent: SentDimensions) -> Dimensions:
        """The value ids of `sent`; a cap in it is set for its run. Raises ApiError if the cap cannot be stored, and for
        no other outage."""
        cap = sent.get(RUN_CAP)
        if cap is not None:
            sent = {name: value for name, value in sent.items() if name != RUN_CAP}
        if self._rules.hashes_end_users and END_USER in sent:
            sent = {**sent, END_USER: hashed(sent[END_USER], self._pepper)}
        ids = await self._ids.of(key, sent)
        if cap is not None:
            try:
                await self._ids.lower_cap((key.key_id, ids[RUN]), nusd_from_usd(cap))
            except OSError:
                raise errors.run_cap_unknown() from None
        return ids

    def levels(
        self, access: KeyAccess, model: str, dimensions: Dimensions | UnsetType, providers: Collection[str] = ()
    ) -> tuple[Scope, ...]:
        """The levels that a request counts against. `dimensions`: as `ids` has just returned them. `providers`: that
        can serve the request. Raises ApiError if the request lacks a dimension that a rule requires."""
        known = NO_DIMENSIONS if dimensions is UNSET else dimensions
        missing = missing_dimension(access.rules, model, known, providers)
        if missing is not None:
            raise errors.missing_dimension(missing)
        levels, run, key_id = access.levels(model, known, providers), known.get(RUN), access.payer.key_id
        cap_nusd = None if run is None else self._ids.cap((key_id, run))
        return levels if run is None or cap_nusd is None else (*levels, run_scope(key_id, run, cap_nusd))
