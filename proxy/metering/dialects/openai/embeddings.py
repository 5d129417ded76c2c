"""The dialect of embeddings. Invariant: no vector is decoded or buffered."""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.inputs import inputs_of
from proxy.metering.plain import PlainTally, skimmed
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import RequestFacts, model_of


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request; nothing is generated, so its limit is 0. Raises InvalidField."""
    return RequestFacts(
        model=named or model_of(document),
        streamed=False,
        usage_asked=True,
        completion_tokens_max=0,
        n=1,
        prompt=inputs_of(document, "input", parts=True).evidence(),
    )


OPENAI_EMBEDDINGS = Dialect(
    name="openai.embeddings",
    paths=("/v1/embeddings",),
    upstream_path="/embeddings",
    operation="embeddings",
    facts=facts,
    tally=PlainTally,
    errors=OPENAI_ERRORS,
    plain=skimmed(PlainTally),
    cost_path=("usage",),
)
