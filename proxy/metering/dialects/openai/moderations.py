"""The dialect moderations: verdicts on an input. Law: OpenAI asks nothing for it, so that without a price it is free.

Where a price is configured it is billed like any request: by the provider's usage, else by the prompt as estimated,
and by the price of a request where one is set.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.inputs import inputs_of
from proxy.metering.dialects.openai.plain import PlainTally, skimmed
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import RequestFacts, model_of

# What OpenAI takes where a request names none; its SDKs leave it out.
_MODEL = "omni-moderation-latest"


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Reads a request; the model need not be in it. Raises InvalidField."""
    model = _MODEL if document.get("model") is None else model_of(document)
    return RequestFacts(
        model=named or model,
        streamed=False,
        usage_asked=True,
        completion_tokens_max=0,
        n=1,
        prompt=inputs_of(document, "input", parts=True).evidence(),
    )


OPENAI_MODERATIONS = Dialect(
    name="openai.moderations",
    paths=("/v1/moderations",),
    upstream_path="/moderations",
    operation="moderation",
    facts=facts,
    tally=PlainTally,
    errors=OPENAI_ERRORS,
    plain=skimmed(PlainTally),
    free_unpriced=True,
)
