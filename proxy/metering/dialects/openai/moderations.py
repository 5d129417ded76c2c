"""The dialect of moderations. Invariant: it is free if no price is configured, as at OpenAI.

With a price it is billed like any request: by the reported usage or the estimated prompt, and by the price per request.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.inputs import inputs_of
from proxy.metering.plain import PlainTally, skimmed
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import RequestFacts, model_of

# OpenAI's default; its SDKs leave the model out.
_MODEL = "omni-moderation-latest"


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request; its model is optional. Raises InvalidField."""
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
