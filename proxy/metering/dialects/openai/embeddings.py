"""The dialect of embeddings. Invariant: no vector is decoded or buffered."""

from __future__ import annotations

from typing import Any

from proxy.metering.dialects.openai.inputs import inputs_of
from proxy.metering.plain import plain_dialect
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.usage import PromptEvidence


def input_of(document: dict[str, Any]) -> PromptEvidence:
    """The evidence of the member `input`. Raises InvalidField."""
    return inputs_of(document, "input", parts=True).evidence()


OPENAI_EMBEDDINGS = plain_dialect(
    name="openai.embeddings",
    paths=("/v1/embeddings",),
    upstream_path="/embeddings",
    operation="embeddings",
    prompt=input_of,
    errors=OPENAI_ERRORS,
    cost_path=("usage",),
)
