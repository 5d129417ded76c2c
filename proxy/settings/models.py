"""The settings of models: the names that clients request, and the providers that serve them.

Invariant: a model has the `price` that the key's owner is billed; a provider of the model has the `cost` that the
provider charges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from proxy.settings.kinds import about, flag_or_auto, path_of, several, text, whole
from proxy.settings.prices import PRICE, PriceLists
from proxy.settings.spending import COMPLETION_TOKENS_MAX

_MODEL = r"[A-Za-z0-9@][A-Za-z0-9_.:/@+-]{0,199}"
_UPSTREAM_MODEL = re.compile(_MODEL, re.ASCII)
PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
MODEL_NAME = re.compile(rf"{_MODEL}|\*|[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}/\*", re.ASCII)

# Shares finer than a thousandth make no visible difference.
WEIGHT_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """One provider that can serve a model."""

    provider: str = field(
        metadata=about(text(PROVIDER_NAME, "the name of a provider"), "the provider; one of `providers` above")
    )
    upstream_model: str = field(
        default="",
        metadata=about(
            text(_UPSTREAM_MODEL, "a model name"), "the model's name at this provider", default="the same name"
        ),
    )
    """empty if the model is a pattern: the requested name is then passed upstream"""
    weight: int | None = field(
        default=None,
        metadata=about(
            whole(1, WEIGHT_MAX),
            "the provider's share of the requests; set it for all providers of a model, or for none",
            default="in order",
        ),
    )
    cost: PriceLists | None = field(
        default=None,
        metadata=about(PRICE, "the price that this provider charges you", default="the built-in price book"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One model name that clients may request, or a pattern of names. After reading, `providers` has all targets."""

    name: str
    provider: str = field(
        default="",
        metadata=about(
            text(PROVIDER_NAME, "the name of a provider"), "the provider; or give `providers`, or `alias_of`",
            default="*required*",
        ),
    )  # fmt: skip
    upstream_model: str = field(
        default="",
        metadata=about(
            text(_UPSTREAM_MODEL, "a model name"), "the model's name at the provider", default="the same name"
        ),
    )
    price: PriceLists | None = field(
        default=None,
        metadata=about(
            PRICE, "the price that the key's owner is billed, for all providers",
            default="the built-in price book, for the first provider",
        ),
    )  # fmt: skip
    cost: PriceLists | None = field(
        default=None,
        metadata=about(PRICE, "the price that the provider charges you", default="the built-in price book"),
    )
    providers: tuple[TargetSettings, ...] = field(
        default=(),
        metadata=about(
            several(TargetSettings, "list of names, or of fields", short="provider"),
            "several providers, instead of `provider`: tried in this order, or by weight, until one answers",
            default="the one `provider`",
        ),
    )
    alias_of: str = field(
        default="",
        metadata=about(
            text(_UPSTREAM_MODEL, "a model name"),
            "the model that this name is an alias of; set no other field",
            default="none",
        ),
    )  # fmt: skip
    completion_tokens_max: int | None = field(
        default=None,
        metadata=about(
            whole(1, COMPLETION_TOKENS_MAX),
            "largest number of tokens in one answer; the reservation is no larger",
            default="unknown",
        ),
    )
    tokenizer: Path | None = field(
        default=None,
        metadata=about(
            path_of("file"), "the model's `tokenizer.json`, for estimates; needs the extra `tokenweir[tokenizers]`",
            default="none",
        ),
    )  # fmt: skip

    hidden_by_time: bool | None = field(
        default=None,
        metadata=about(
            flag_or_auto(),
            "as `providers.<name>.hidden_by_time`, for this model; `auto`: as its provider",
            default="auto",
        ),
    )

    @property
    def is_pattern(self) -> bool:
        """True for `*` and `prefix/*`, which pass the requested name upstream."""
        return self.name.endswith("*")
