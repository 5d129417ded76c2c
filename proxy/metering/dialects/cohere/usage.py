"""The usage object of Cohere's chat → `Usage`, by one rule.

Rule: prompt = `tokens.input_tokens`; completion = `tokens.output_tokens`; reasoning = `tokens.reasoning_tokens`;
cached = `cached_tokens`; total = prompt + completion, for none is told. `tokens` is what the model read and wrote;
`billed_units` is what Cohere charges: it leaves out what Cohere itself put around the prompt and the answer, which is
therefore unbilled. It stands in where `tokens` does not say a count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.dialects.openai.usage import count
from proxy.metering.usage import Usage

_SIDES = ("input_tokens", "output_tokens")


def usage_of(raw: Mapping[str, Any]) -> Usage | None:
    """The counts in `raw`, None where it says nothing; None altogether if one of them cannot be a count."""
    tokens, billed = _part(raw, "tokens"), _part(raw, "billed_units")
    try:
        prompt, completion = (count(billed.get(side) if tokens.get(side) is None else tokens[side]) for side in _SIDES)
        return Usage(
            prompt_tokens=prompt,
            cached_tokens=count(raw.get("cached_tokens")),
            completion_tokens=completion,
            reasoning_tokens=count(tokens.get("reasoning_tokens")),
            total_tokens=None if prompt is None or completion is None else prompt + completion,
            unbilled_prompt_tokens=_less(prompt, count(billed.get("input_tokens"))),
            unbilled_completion_tokens=_less(completion, count(billed.get("output_tokens"))),
        )
    except ValueError:
        return None


def _less(tokens: int | None, billed: int | None) -> int | None:
    return None if tokens is None or billed is None else max(0, tokens - billed)


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = raw.get(name)
    return part if isinstance(part, dict) else {}
