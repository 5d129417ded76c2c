"""The usage object of Cohere's chat → `Usage`.

Invariants: `tokens` are those processed by the model; `billed_units` are those that Cohere charges. The difference,
which Cohere adds around prompt and answer, is unbilled. If `tokens` lacks a count, that of `billed_units` applies.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.counts import with_total
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import Usage
from proxy.metering.usage_reader import UsageReader

_reported = UsageReader(
    prompt_tokens="tokens.input_tokens, billed_units.input_tokens",
    cached_tokens="cached_tokens",
    completion_tokens="tokens.output_tokens, billed_units.output_tokens",
    reasoning_tokens="tokens.reasoning_tokens",
)
# Image tokens are part of the input. https://docs.cohere.com/reference/chat
_KNOWN = "id type finish_reason message " + each("usage", f"{_reported.paths} tokens.image_tokens")

KNOWN = members("index", _KNOWN, each("delta", _KNOWN))
"""the members of an event or an answer that are read, or cost nothing"""
_billed = UsageReader(prompt_tokens="billed_units.input_tokens", completion_tokens="billed_units.output_tokens")


def usage_of(raw: dict[str, Any], flags: set[str]) -> Usage:
    """The counts in `raw`; flags invalid counts."""
    usage, billed = _reported(raw, flags), _billed(raw, flags)
    return with_total(
        structs.replace(
            usage,
            unbilled_prompt_tokens=_less(usage.prompt_tokens, billed.prompt_tokens),
            unbilled_completion_tokens=_less(usage.completion_tokens, billed.completion_tokens),
        )
    )


def _less(tokens: int | None, billed: int | None) -> int | None:
    return None if tokens is None or billed is None else max(0, tokens - billed)
