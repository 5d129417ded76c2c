"""The dialect of completions: text choices; `include_usage` and usage as in chat/completions.

Invariants: those of chat; only the request differs. Each prompt has `n` answers, and all `best_of` generated ones are
billed, also those not returned. If `echo` repeats a prompt and no usage is reported, the repetition counts as
generated, up to the request's limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.metering.dialects.openai.chat import OPENAI_CHAT, ChatTally
from proxy.metering.dialects.openai.inputs import Inputs, inputs_of
from proxy.metering.dialects.openai.request import N_MAX, usage_asked
from proxy.metering.dialects.openai.wire import Choice, Part
from proxy.metering.request import RequestFacts, flag, integer, model_of, output_limit

# OpenAI's default for a missing prompt: one token that begins a document.
_NO_PROMPT = Inputs(1, tokens=1)


class CompletionsTally(ChatTally):
    """The counts of one answer: the text of a choice is a fragment, like the content of a delta."""

    __slots__ = ()

    def _part_without_delta(self, choice: Choice) -> Part | None:
        return Part(content=choice.text) if choice.text else super()._part_without_delta(choice)


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    inputs = _NO_PROMPT if document.get("prompt") is None else inputs_of(document, "prompt")
    returned = integer(document, "n", at_most=N_MAX) or 1
    generated = max(returned, integer(document, "best_of", at_most=N_MAX) or 1)
    limit = output_limit(document, "max_tokens", at_least=0)  # 0: only the prompt's probabilities
    streamed, asked = usage_asked(document)
    return RequestFacts(
        model=named or model_of(document),
        streamed=streamed,
        usage_asked=asked,
        completion_tokens_max=None if limit is None else inputs.count * generated * limit,
        n=inputs.count * generated,
        prompt=inputs.evidence(document.get("suffix")),
        echoes=flag(document, "echo"),
    )


OPENAI_COMPLETIONS = replace(
    OPENAI_CHAT,
    name="openai.completions",
    paths=("/v1/completions",),
    operation="text_completion",
    facts=facts,
    tally=CompletionsTally,
    names_files=False,
)
