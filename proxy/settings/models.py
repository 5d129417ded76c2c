"""The settings of models: the names that clients request, and the providers that serve them.

Invariant: a model has the `price` that the key's owner is billed; a provider of the model has the `cost` that the
provider charges.
"""

from __future__ import annotations

import re
from pathlib import Path

from proxy.settings.fields import setting, settings_section, several
from proxy.settings.kinds import flag_or_auto, path_of, text, whole
from proxy.settings.prices import PRICE, PriceLists
from proxy.settings.spending import COMPLETION_TOKENS_MAX

_MODEL = r"[A-Za-z0-9@][A-Za-z0-9_.:/@+-]{0,199}"
PLAIN_MODEL_NAME = re.compile(_MODEL, re.ASCII)
PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
MODEL_NAME = re.compile(rf"{_MODEL}|\*|[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}/\*", re.ASCII)

# Shares finer than a thousandth make no visible difference.
WEIGHT_MAX = 1000


@settings_section
class TargetSettings:
    """One provider that can serve a model."""

    provider: str = setting(text(PROVIDER_NAME, "the name of a provider"), "the provider; one of `providers` above")
    upstream_model: str = setting(
        text(PLAIN_MODEL_NAME, "a model name"), "the model's name at this provider", default="", shown="the same name"
    )
    """empty if the model is a pattern: the requested name is then passed upstream"""
    weight: int | None = setting(
        whole(1, WEIGHT_MAX),
        "the provider's share of the requests; set it for all providers of a model, or for none",
        default=None,
        shown="in order",
    )
    cost: PriceLists | None = setting(
        PRICE, "the price that this provider charges you", default=None, shown="the built-in price book"
    )


@settings_section
class ModelSettings:
    """One model name that clients may request, or a pattern of names. After reading, `providers` has all targets."""

    name: str
    provider: str = setting(
        text(PROVIDER_NAME, "the name of a provider"),
        "the provider; or give `providers`, or `alias_of`",
        default="",
        shown="*required*",
    )
    upstream_model: str = setting(
        text(PLAIN_MODEL_NAME, "a model name"), "the model's name at the provider", default="", shown="the same name"
    )
    price: PriceLists | None = setting(
        PRICE,
        "the price that the key's owner is billed, for all providers",
        default=None,
        shown="the built-in price book, for the first provider",
    )
    cost: PriceLists | None = setting(
        PRICE, "the price that the provider charges you", default=None, shown="the built-in price book"
    )
    providers: tuple[TargetSettings, ...] = setting(
        several(TargetSettings, "list of names, or of fields", short="provider"),
        "several providers, instead of `provider`: tried in this order, or by weight, until one answers",
        default=(),
        shown="the one `provider`",
    )
    alias_of: str = setting(
        text(PLAIN_MODEL_NAME, "a model name"),
        "the model that this name is an alias of; set no other field",
        default="",
        shown="none",
    )
    completion_tokens_max: int | None = setting(
        whole(1, COMPLETION_TOKENS_MAX),
        "largest number of tokens in one answer; the reservation is no larger",
        default=None,
        shown="unknown",
    )
    tokenizer: Path | None = setting(
        path_of("file"),
        "the model's `tokenizer.json`, for estimates; needs the extra `tokenweir[tokenizers]`",
        default=None,
    )

    hidden_by_time: bool | None = setting(
        flag_or_auto(),
        "as `providers.<name>.hidden_by_time`, for this model; `auto`: as its provider",
        default=None,
        shown="auto",
    )

    @property
    def is_pattern(self) -> bool:
        """True for `*` and `prefix/*`, which pass the requested name upstream."""
        return self.name.endswith("*")
