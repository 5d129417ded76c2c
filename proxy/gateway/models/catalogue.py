"""The models that a key may use: configured models, and listed models that match a configured pattern.

Invariants: configured names come first, and hide a listed model of that name. A name is listed once, and only for the
model setting that would serve it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from proxy.billing.keys import ApiKey
from proxy.gateway.models.fetched_lists import FetchedLists
from proxy.gateway.models.listed_model import ListedModel, dialects_of
from proxy.gateway.upstream.provider import Provider
from proxy.settings import ModelSettings, route

OWNER = "tokenweir"
"""in place of a provider's name"""


class Catalogue:
    """The models of each key."""

    def __init__(
        self,
        models: Mapping[str, ModelSettings],
        providers: Mapping[str, Provider],
        lists: FetchedLists,
        *,
        hides_providers: bool = False,
    ) -> None:
        """`providers`: name in the settings → provider. `hides_providers`: lists name OWNER instead."""
        self._hides_providers = hides_providers
        self._providers = providers
        self._lists = lists
        self._models, self._named = models, _named(models, providers)

    def changed_to(
        self, models: Mapping[str, ModelSettings], providers: Mapping[str, Provider], *, hides_providers: bool
    ) -> Callable[[], None]:
        """Prepare a list of other models. Returns a function that switches to it; it expects that `providers` has been
        changed before."""
        named = _named(models, providers)

        def change() -> None:
            self._models, self._named, self._hides_providers = models, named, hides_providers

        return change

    async def models(self, key: ApiKey) -> dict[str, ListedModel]:
        """Name → model, for all models that `key` may use. May wait for providers' lists."""
        found = await self._allowed(key)
        return {name: self._shown(model) for name, model in found.items()}

    def _shown(self, model: ListedModel) -> ListedModel:
        return replace(model, provider=OWNER) if self._hides_providers else model

    async def _allowed(self, key: ApiKey) -> dict[str, ListedModel]:
        patterns = self._patterns(key)
        lists = await self._lists.of(self._targets(patterns))
        found = {name: model for name, model in self._named.items() if key.allows(name)}
        for name, model in self._passed(patterns, lists):
            if key.allows(name):
                found.setdefault(name, model)
        for name in sorted(key.models or ()):  # allowed by name, and served by a pattern, even if not listed
            if (setting := self._setting(name)) is not None:
                found.setdefault(name, _unlisted(name, setting, self._providers))
        return found

    async def model(self, key: ApiKey, name: str) -> ListedModel | None:
        """The model that clients request as `name`; None if there is none, or `key` may not use it."""
        found = await self._one(key, name)
        return None if found is None else self._shown(found)

    async def _one(self, key: ApiKey, name: str) -> ListedModel | None:
        """The model that clients request as `name`; None if there is none, or `key` may not use it. A name that matches
        a pattern counts as configured while the provider's list is unknown: the model may exist there."""
        setting = self._setting(name)
        if setting is None or not key.allows(name):
            return None
        if name in self._named:
            return self._named[name]
        targets = self._targets([setting])
        lists = await self._lists.of(targets)
        listed = dict(self._passed([setting], lists)).get(name)
        may_exist = key.models is not None or len(lists) < len(targets)
        return _unlisted(name, setting, self._providers) if listed is None and may_exist else listed

    def _patterns(self, key: ApiKey) -> list[ModelSettings]:
        """The patterns that serve a name which `key` may use."""
        if key.models is None:
            return [setting for setting in self._models.values() if setting.is_pattern]
        serving = (self._setting(name) for name in sorted(key.models))
        return list({one.name: one for one in serving if one is not None and one.is_pattern}.values())

    def _passed(
        self, patterns: Iterable[ModelSettings], lists: Mapping[str, Sequence[ListedModel]]
    ) -> Iterator[tuple[str, ListedModel]]:
        """(name for clients, model) of each listed model that matches `patterns`."""
        for setting in patterns:
            prefix = setting.name.removesuffix("*")
            for target in setting.providers:
                for model in lists.get(target.provider, ()):
                    name = prefix + model.name
                    if self._setting(name) is setting:
                        yield name, replace(model, name=name) if prefix else model

    def _targets(self, settings: Iterable[ModelSettings]) -> list[Provider]:
        names = dict.fromkeys(target.provider for setting in settings for target in setting.providers)
        return [self._providers[name] for name in names]

    def _setting(self, name: str) -> ModelSettings | None:
        """The model setting that serves `name`."""
        found = route(self._models, name)
        return None if found is None else found[0]


def _named(models: Mapping[str, ModelSettings], providers: Mapping[str, Provider]) -> dict[str, ListedModel]:
    named = ((name, setting) for name, setting in sorted(models.items()) if not setting.is_pattern)
    return {name: _unlisted(name, setting, providers) for name, setting in named}


def _unlisted(name: str, setting: ModelSettings, providers: Mapping[str, Provider]) -> ListedModel:
    """A model by the configuration only."""
    served = [dialects_of(providers[target.provider].settings.dialects) for target in setting.providers]
    return ListedModel(
        name=name,
        provider=setting.providers[0].provider,
        dialects=frozenset().union(*served),
        output_tokens_max=setting.completion_tokens_max or 0,
    )
