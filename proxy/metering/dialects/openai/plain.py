"""The dialects without streams: embeddings, moderations and rerank.

Invariants: no vector is decoded or buffered. Moderations are free if no price is configured, as at OpenAI; with a price
they are billed like any request: by the reported usage or the estimated prompt, and by the price per request. Rerank,
which Cohere, Jina, vLLM and llama.cpp share, is billed by the provider's count: tokens, or search units, which are
`searches` here.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialects.openai.inputs import inputs_of
from proxy.metering.plain import plain_dialect
from proxy.metering.request import InvalidField, counted
from proxy.metering.usage import PromptEvidence


def _input(document: dict[str, Any]) -> PromptEvidence:
    return inputs_of(document, "input", parts=True).evidence()


OPENAI_EMBEDDINGS = plain_dialect(
    name="openai.embeddings",
    paths=("/v1/embeddings",),
    operation="embeddings",
    prompt=_input,
    cost_path=("usage",),
)

OPENAI_MODERATIONS = plain_dialect(
    name="openai.moderations",
    paths=("/v1/moderations",),
    operation="moderation",
    prompt=_input,
    default_model="omni-moderation-latest",  # OpenAI's default; its SDKs leave the model out
    free_unpriced=True,
)


def _query_and_documents(document: dict[str, Any]) -> PromptEvidence:
    """The query counts once per document, since models read it with each."""
    query, documents = document.get("query"), document.get("documents")
    if not isinstance(query, str | dict):
        raise InvalidField("query", "must be a string, or an object with a text")
    if not isinstance(documents, list) or not documents:
        raise InvalidField("documents", "must be a non-empty array")
    texts = [text for at, one in enumerate(documents) for text in _texts(one, f"documents[{at}]")]
    query_chars = [count * len(documents) for count in counted(_texts(query, "query"))[0]]
    (latin, wide, other, *_), _ = counted(texts)
    return PromptEvidence(
        chars_latin=latin + query_chars[0], chars_wide=wide + query_chars[1], chars_other=other + query_chars[2]
    )


def _texts(value: Any, param: str) -> list[str]:
    """A string, or all strings of an object: `rank_fields` may select any."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, dict):
        raise InvalidField(param, "must be a string or an object")
    return [text for text in value.values() if isinstance(text, str)]


OPENAI_RERANK = plain_dialect(
    name="openai.rerank",
    paths=("/v1/rerank", "/v2/rerank"),
    operation="rerank",
    prompt=_query_and_documents,
)
