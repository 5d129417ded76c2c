"""The dialect of Mistral's agents/completions: chat with an agent in place of a model.

Invariants: requests and answers have the shapes of chat. The agent's id is the model for routing and prices, whatever
model answers. The last chunk of a stream always has the usage, so that it is never injected.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.metering.dialects.mistral.fim import MISTRAL_FIM
from proxy.metering.dialects.openai import request as chat
from proxy.metering.refusal import ErrorShape
from proxy.metering.request import RequestFacts, model_of


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    return chat.facts(document, named or model_of(document, "agent_id"))


def upstream_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy with the provider's name of the agent."""
    return {**document, "agent_id": upstream_model}


MISTRAL_AGENTS = replace(
    MISTRAL_FIM,
    name="mistral.agents",
    paths=("/v1/agents/completions",),
    upstream_path="/agents/completions",
    operation="chat",
    facts=facts,
    upstream_document=upstream_document,
    errors=ErrorShape("/v1/agents/", MISTRAL_FIM.errors.body, MISTRAL_FIM.errors.event_body),
)
