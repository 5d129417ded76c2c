"""The dialect of moderations. Invariant: it is free if no price is configured, as at OpenAI.

With a price it is billed like any request: by the reported usage or the estimated prompt, and by the price per request.
"""

from __future__ import annotations

from proxy.metering.dialects.openai.embeddings import input_of
from proxy.metering.plain import plain_dialect
from proxy.metering.refusal import OPENAI_ERRORS

OPENAI_MODERATIONS = plain_dialect(
    name="openai.moderations",
    paths=("/v1/moderations",),
    upstream_path="/moderations",
    operation="moderation",
    prompt=input_of,
    default_model="omni-moderation-latest",  # OpenAI's default; its SDKs leave the model out
    errors=OPENAI_ERRORS,
    free_unpriced=True,
)
