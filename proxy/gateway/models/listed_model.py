"""One model of a list: configured, or listed by a provider."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from proxy.metering.dialects import DIALECTS, supports


class ModelStatus(StrEnum):
    """Anthropic's words for how long a model is still served."""

    ACTIVE = "active"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One model. The numbers are the provider's; 0: unknown."""

    name: str
    """the name in requests: of clients, or (in a provider's list) to the provider"""
    provider: str
    """the name of the provider's settings"""
    dialects: frozenset[str]
    """the names of the dialects that serve the model"""
    created: int = 0
    """Unix seconds"""
    input_tokens_max: int = 0
    output_tokens_max: int = 0
    lifecycle: ModelStatus = ModelStatus.ACTIVE


@lru_cache(maxsize=256)
def dialects_of(names: tuple[str, ...]) -> frozenset[str]:
    """The dialects that a provider's settings name, each by its own name."""
    return frozenset(dialect.name for dialect in DIALECTS if supports(names, dialect))
