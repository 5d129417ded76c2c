"""The settings of what clients may ask for, and of who answers. Law: as of all settings; see values.py.

What a key's owner pays is a matter of the model, whoever answers; what we pay is a matter of who did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from proxy.billing.record import Price
from proxy.settings.kinds import about, path_of, several, text, whole
from proxy.settings.prices import PRICE
from proxy.settings.spending import COMPLETION_TOKENS_MAX

_MODEL = r"[A-Za-z0-9@][A-Za-z0-9_.:/@+-]{0,199}"
_UPSTREAM_MODEL = re.compile(_MODEL, re.ASCII)
PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
MODEL_NAME = re.compile(rf"{_MODEL}|\*|[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}/\*", re.ASCII)

# Finer shares than thousandths nobody could see.
WEIGHT_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """One provider that can answer for a model."""

    provider: str = field(metadata=about(text(PROVIDER_NAME, "the name of a provider"), "who answers"))
    upstream_model: str = field(
        default="",
        metadata=about(text(_UPSTREAM_MODEL, "a model name"), "the model's name there", default="the same name"),
    )
    """never empty once read, but where the model is a pattern: then it is what the client asked for"""
    weight: int | None = field(
        default=None,
        metadata=about(
            whole(1, WEIGHT_MAX), "its share of the requests; all of a model's have one, or none", default="in order"
        ),
    )
    cost: Price | None = field(
        default=None, metadata=about(PRICE, "what this provider charges you", default="the built-in price book")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One name that clients may ask for, or a pattern of names. Once read, who answers is in `providers` alone."""

    name: str
    provider: str = field(
        default="",
        metadata=about(
            text(PROVIDER_NAME, "the name of a provider"), "which provider answers; or `providers`, or `alias_of`",
            default="*required*",
        ),
    )  # fmt: skip
    upstream_model: str = field(
        default="",
        metadata=about(text(_UPSTREAM_MODEL, "a model name"), "its name there", default="the same name"),
    )
    price: Price | None = field(
        default=None,
        metadata=about(
            PRICE, "what the key's owner is billed, whoever answers",
            default="the built-in price book, for the first provider",
        ),
    )  # fmt: skip
    cost: Price | None = field(
        default=None,
        metadata=about(PRICE, "what the provider charges you", default="the built-in price book"),
    )
    providers: tuple[TargetSettings, ...] = field(
        default=(),
        metadata=about(
            several(TargetSettings, "list of fields"),
            "several, instead of `provider`: tried in this order, or by weight, until one answers",
            default="the one `provider`",
        ),
    )
    alias_of: str = field(
        default="",
        metadata=about(
            text(_UPSTREAM_MODEL, "a model name"), "the model that this is another name of, in place of all else",
            default="none",
        ),
    )  # fmt: skip
    completion_tokens_max: int | None = field(
        default=None,
        metadata=about(
            whole(1, COMPLETION_TOKENS_MAX), "most tokens one answer can have: no more is held", default="not known"
        ),
    )
    tokenizer: Path | None = field(
        default=None,
        metadata=about(
            path_of("file"), "its `tokenizer.json`, to estimate streams by; needs the extra `tokenweir[tokenizers]`",
            default="none",
        ),
    )  # fmt: skip

    @property
    def is_pattern(self) -> bool:
        """True for `*` and `prefix/*`, which pass names on."""
        return self.name.endswith("*")
