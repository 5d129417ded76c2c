"""The dialects of rawPredict and streamRawPredict: Anthropic's messages, and Mistral's chat.

Invariants: tallies, rewriting and errors are the publisher's own. The model is that of the path; Anthropic's body has
none. Counting tokens has a path of its own, and a model in its body.
https://platform.claude.com/docs/en/build-with-claude/claude-on-vertex-ai
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from proxy.metering.dialect import Dialect, Facts
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_COUNT_TOKENS, ANTHROPIC_MESSAGES
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.vertex.paths import publisher_paths
from proxy.metering.request import RequestFacts, with_model, with_model_if_named


def _streaming(facts: Facts) -> Facts:
    """`facts` of a stream: the path requests one, whatever the body has."""

    def read(document: dict[str, Any], named: str | None = None) -> RequestFacts:
        return structs.replace(facts(document, named), streamed=True)

    return read


def _raw(dialect: Dialect, publisher: str, **more: Any) -> tuple[Dialect, Dialect]:
    """The dialects of both methods."""
    plain = replace(dialect, name=f"vertex.{publisher}", **publisher_paths(publisher, "rawPredict"), **more)
    streamed = replace(
        plain,
        name=f"vertex.{publisher}_stream",
        facts=_streaming(plain.facts),
        **publisher_paths(publisher, "streamRawPredict"),
    )
    return plain, streamed


VERTEX_ANTHROPIC, VERTEX_ANTHROPIC_STREAM = _raw(
    ANTHROPIC_MESSAGES, "anthropic", upstream_document=with_model_if_named, headers_up=("anthropic-beta",), query=()
)
# Its streams end with the usage, asked for or not.
VERTEX_MISTRAL, VERTEX_MISTRAL_STREAM = _raw(OPENAI_CHAT, "mistralai", upstream_document=with_model, stripper=None)
VERTEX_ANTHROPIC_COUNT = replace(
    ANTHROPIC_COUNT_TOKENS,
    name="vertex.anthropic_count_tokens",
    **publisher_paths("anthropic", "rawPredict", "count-tokens"),
    upstream_document=with_model,
    headers_up=("anthropic-beta",),
    query=(),
)
