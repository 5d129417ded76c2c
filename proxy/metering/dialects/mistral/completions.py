"""The dialects of Mistral's fim/completions and agents/completions, whose answers have the shapes of chat.

Invariants: the last chunk of a stream always has the usage, so that it is never injected. Usage is read as in chat.
fim fills in between a prompt and a suffix, with one answer. Requests to agents have the shapes of chat. The agent's id
is the model for routing and prices, whatever model answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai import request as chat
from proxy.metering.dialects.openai.chat import ChatTally
from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape, Refusal
from proxy.metering.request import InvalidField, RequestFacts, flag, integer, model_of, prompt_evidence
from proxy.metering.usage import TOKENS_MAX, PromptEvidence


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request of fim/completions. Raises InvalidField."""
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
    return {"object": "error", **OPENAI_ERRORS.body(refusal)["error"]}


MISTRAL_FIM = Dialect(
    name="mistral.fim",
    paths=("/v1/fim/completions",),
    operation="text_completion",
    facts=facts,
    tally=ChatTally,
    errors=ErrorShape("/v1/fim/", _refused, _refused),
    headers_down=("mistral-correlation-id",),
    cost_path=("usage",),
)


def agent_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request to an agent. Raises InvalidField."""
    return chat.facts(document, named or model_of(document, "agent_id"))


def _agent_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy with the provider's name of the agent."""
    return {**document, "agent_id": upstream_model}


MISTRAL_AGENTS = replace(
    MISTRAL_FIM,
    name="mistral.agents",
    paths=("/v1/agents/completions",),
    operation="chat",
    facts=agent_facts,
    upstream_document=_agent_document,
    errors=ErrorShape("/v1/agents/", MISTRAL_FIM.errors.body, MISTRAL_FIM.errors.event_body),
)
