"""The dialect completions, the older one: text choices, `include_usage` and usage as in chat/completions.

Law: as chat's; what differs is the request. Each prompt has `n` answers, and all `best_of` that the provider makes of
it are billed, those too that it keeps. Where `echo` repeats a prompt and no usage is reported, the repetition counts
as generated, up to the request's own limit.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.chat import ChatTally
from proxy.metering.dialects.openai.inputs import Inputs, inputs_of
from proxy.metering.dialects.openai.request import N_MAX, upstream_document, usage_asked
from proxy.metering.dialects.openai.strip import UsageStripper
from proxy.metering.dialects.openai.wire import Choice, Part
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import RequestFacts, flag, integer, model_of
from proxy.metering.usage import TOKENS_MAX

# What OpenAI takes for a prompt where there is none: one token that begins a document.
_NO_PROMPT = Inputs(1, tokens=1)


class CompletionsTally(ChatTally):
    """What the chunks of one exchange add up to: a choice's text is a fragment, as a delta's content is."""

    __slots__ = ()

    def _part_without_delta(self, choice: Choice) -> Part | None:
        return Part(content=choice.text) if choice.text else super()._part_without_delta(choice)


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Reads a request. Raises InvalidField."""
    inputs = _NO_PROMPT if document.get("prompt") is None else inputs_of(document, "prompt")
    kept = integer(document, "n", at_most=N_MAX) or 1
    made = max(kept, integer(document, "best_of", at_most=N_MAX) or 1)
    limit = integer(document, "max_tokens", at_most=TOKENS_MAX, at_least=0)  # 0: only the prompt's probabilities
    flag(document, "echo")
    streamed, asked = usage_asked(document)
    return RequestFacts(
        model=named or model_of(document),
        streamed=streamed,
        usage_asked=asked,
        completion_tokens_max=None if limit is None else inputs.count * made * limit,
        n=inputs.count * made,
        prompt=inputs.evidence(document.get("suffix")),
    )


OPENAI_COMPLETIONS = Dialect(
    name="openai.completions",
    paths=("/v1/completions",),
    upstream_path="/completions",
    operation="text_completion",
    facts=facts,
    upstream_document=upstream_document,
    tally=CompletionsTally,
    errors=OPENAI_ERRORS,
    stripper=UsageStripper,
)
