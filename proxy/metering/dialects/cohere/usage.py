"""The usage object of Cohere's chat → `Usage`.

Invariant: `tokens` is what the model read and wrote; `billed_units` is what Cohere charges. It leaves out what Cohere
itself put around the prompt and the answer, which is therefore unbilled. It stands in where `tokens` has no count.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.counts import usage_reader, with_total
from proxy.metering.usage import Usage

_reported = usage_reader(
    prompt_tokens="tokens.input_tokens | billed_units.input_tokens",
    cached_tokens="cached_tokens",
    completion_tokens="tokens.output_tokens | billed_units.output_tokens",
    reasoning_tokens="tokens.reasoning_tokens",
)
_billed = usage_reader(prompt_tokens="billed_units.input_tokens", completion_tokens="billed_units.output_tokens")


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is no count."""
    usage, billed = _reported(raw), _billed(raw)
    if usage is None or billed is None:
        return None
    return with_total(
        structs.replace(
            usage,
            unbilled_prompt_tokens=_less(usage.prompt_tokens, billed.prompt_tokens),
            unbilled_completion_tokens=_less(usage.completion_tokens, billed.completion_tokens),
        )
    )


def _less(tokens: int | None, billed: int | None) -> int | None:
    return None if tokens is None or billed is None else max(0, tokens - billed)
