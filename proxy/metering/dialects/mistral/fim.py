"""The dialect of Mistral's fim/completions: fills in between a prompt and a suffix; answers have the shapes of chat.

Invariants: one prompt has one answer. The last chunk of a stream always has the usage, so that it is never injected.
Usage is read as in chat.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.chat import ChatTally
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.request import InvalidField, RequestFacts, flag, integer, model_of, prompt_evidence
from proxy.metering.usage import TOKENS_MAX, PromptEvidence


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    return RequestFacts(
        model=named or model_of(document),
        streamed=flag(document, "stream"),
        completion_tokens_max=integer(document, "max_tokens", at_least=0, at_most=TOKENS_MAX),
        prompt=_prompt(document),
    )


def _prompt(document: dict[str, Any]) -> PromptEvidence:
    prompt, suffix = document.get("prompt"), document.get("suffix")
    if not isinstance(prompt, str) or not prompt:
        raise InvalidField("prompt", "must be a non-empty string")
    if suffix is not None and not isinstance(suffix, str):
        raise InvalidField("suffix", "must be a string")
    return prompt_evidence([prompt, suffix or ""], messages=1)


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {
        "object": "error",
        "message": refusal.message,
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.code,
    }


MISTRAL_FIM = Dialect(
    name="mistral.fim",
    paths=("/v1/fim/completions",),
    upstream_path="/fim/completions",
    operation="text_completion",
    facts=facts,
    tally=ChatTally,
    errors=ErrorShape("/v1/fim/", _refused, _refused),
    headers_down=("mistral-correlation-id",),
    cost_path=("usage",),
)
