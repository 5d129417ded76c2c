"""Lists of models in the formats that SDKs read. Pure.

Invariant: every member that an SDK requires is present. An unknown value is given as unknown, never invented.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from proxy.gateway.models import words
from proxy.gateway.models.listed_model import ListedModel, ModelStatus
from proxy.gateway.models.pages import Paging, Query
from proxy.gateway.models.words import Words
from proxy.metering.dialects import DIALECTS
from proxy.metering.refusal import ErrorShape

# The version of Ollama's API: clients refuse older servers.
OLLAMA_VERSION = "0.12.0"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """The format of models for the SDKs of one family."""

    errors: ErrorShape
    one: Callable[[ListedModel], Document]
    listed: Callable[[Sequence[ListedModel], Query], Document]
    """models and query → the document of the list, or of the requested page. Raises ApiError"""
    spoken: Collection[str] = ()
    """clients see only models with one of these dialects; empty: all models"""

    def shows(self, model: ListedModel) -> bool:
        """True if clients of this family can request the model."""
        return not self.spoken or not model.dialects.isdisjoint(self.spoken)


def _errors(family: str) -> ErrorShape:
    return next(dialect.errors for dialect in DIALECTS if dialect.name.startswith(f"{family}."))


def _uses(model: ListedModel, words: Words) -> list[str]:
    """The uses of the model, each word once."""
    return list(dict.fromkeys(word for dialect, word in words.items() if dialect in model.dialects))


def _known(**members: object) -> Document:
    """The members that are known."""
    return {name: value for name, value in members.items() if value}


def _date(model: ListedModel) -> str:
    """The date of creation (RFC 3339); the epoch: unknown."""
    return datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")


# -- OpenAI, and Mistral, whose models have more members


def _openai(model: ListedModel) -> Document:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": model.provider}


def _mistral(model: ListedModel) -> Document:
    capabilities = dict.fromkeys(words.MISTRAL.values(), False) | dict.fromkeys(_uses(model, words.MISTRAL), True)
    return {
        **_openai(model), "type": "base", "name": model.name, "capabilities": capabilities,
        **_known(max_context_length=model.input_tokens_max),
    }  # fmt: skip


def _all_of(one: Callable[[ListedModel], Document]) -> Callable[[Sequence[ListedModel], Query], Document]:
    """A list without pages."""
    return lambda models, _query: {"object": "list", "data": list(map(one, models))}


# -- Anthropic

_ANTHROPIC_PAGES = Paging("limit", 20, "after_id", "before_id")
_SERVED = (ModelStatus.ACTIVE, ModelStatus.DEPRECATED)


def _anthropic(model: ListedModel) -> Document:
    return {
        "type": "model", "id": model.name, "display_name": model.name, "created_at": _date(model),
        "lifecycle": model.lifecycle,
        **_known(max_input_tokens=model.input_tokens_max, max_tokens=model.output_tokens_max),
    }  # fmt: skip


def _anthropic_list(models: Sequence[ListedModel], query: Query) -> Document:
    wanted = (*query.get("lifecycle", ()), *query.get("lifecycle[]", ())) or _SERVED
    page = _ANTHROPIC_PAGES.page([one for one in models if one.lifecycle in wanted], query)
    first = page.models[0].name if page.models else None
    data = list(map(_anthropic, page.models))
    return {"data": data, "has_more": page.has_more, "first_id": first, "last_id": page.last_name}


# -- Google

_GEMINI_PAGES = Paging("pageSize", 50, "pageToken")


def _gemini(model: ListedModel) -> Document:
    return {
        "name": f"models/{model.name}", "displayName": model.name, "version": "",
        "supportedGenerationMethods": _uses(model, words.GEMINI),
        **_known(inputTokenLimit=model.input_tokens_max, outputTokenLimit=model.output_tokens_max),
    }  # fmt: skip


def _gemini_list(models: Sequence[ListedModel], query: Query) -> Document:
    page = _GEMINI_PAGES.page(models, query)
    return {"models": list(map(_gemini, page.models)), **_known(nextPageToken=page.has_more and page.last_name)}


# -- Cohere

_COHERE_PAGES = Paging("page_size", 20, "page_token")


def _cohere(model: ListedModel) -> Document:
    known = _known(context_length=model.input_tokens_max)
    deprecated = model.lifecycle is not ModelStatus.ACTIVE
    uses = _uses(model, words.COHERE)
    return {"name": model.name, "endpoints": uses, "finetuned": False, "is_deprecated": deprecated, **known}


def _cohere_list(models: Sequence[ListedModel], query: Query) -> Document:
    endpoint = query.get("endpoint", ("",))[0]
    page = _COHERE_PAGES.page([one for one in models if not endpoint or endpoint in _uses(one, words.COHERE)], query)
    return {"models": list(map(_cohere, page.models)), **_known(next_page_token=page.has_more and page.last_name)}


# -- Ollama: models are files there; its command line cuts the digest without a look at its length


def _ollama_tag(model: ListedModel) -> Document:
    return {
        "name": model.name, "model": model.name, "modified_at": _date(model), "size": 0,
        "digest": sha256(model.name.encode()).hexdigest(), "details": _OLLAMA_DETAILS,
    }  # fmt: skip


_OLLAMA_DETAILS: Mapping[str, Any] = {
    "parent_model": "", "format": "", "family": "", "families": None, "parameter_size": "", "quantization_level": "",
}  # fmt: skip


def _ollama(model: ListedModel) -> Document:
    info = {"general.architecture": "unknown", **_known(**{"unknown.context_length": model.input_tokens_max})}
    return {
        "license": "", "modelfile": "", "parameters": "", "template": "", "details": _OLLAMA_DETAILS,
        "model_info": info, "capabilities": _uses(model, words.OLLAMA), "modified_at": _date(model),
    }  # fmt: skip


OPENAI = Format(_errors("openai"), _openai, _all_of(_openai))
MISTRAL = Format(_errors("mistral"), _mistral, _all_of(_mistral), words.MISTRAL)
ANTHROPIC = Format(_errors("anthropic"), _anthropic, _anthropic_list, ("anthropic.messages",))
GEMINI = Format(_errors("gemini"), _gemini, _gemini_list, words.GEMINI)
# Not `openai.rerank`: all who copy OpenAI would be Cohere's.
COHERE = Format(_errors("cohere"), _cohere, _cohere_list, ("cohere.chat",))
OLLAMA = Format(
    _errors("ollama"), _ollama, lambda models, _query: {"models": list(map(_ollama_tag, models))}, words.OLLAMA
)

# Checked in this order: SDKs of Google and Anthropic are known by their headers, others by their names.
_BY_HEADER = {"x-goog-api-key": GEMINI, "anthropic-version": ANTHROPIC, "x-api-key": ANTHROPIC}
_BY_AGENT = {"mistral": MISTRAL, "cohere": COHERE}


def format_for(headers: Mapping[str, str]) -> Format:
    """The client's format, at a path that several families share; OpenAI's for an unknown client."""
    agent = headers.get("User-Agent", "").lower()
    by_header = (found for name, found in _BY_HEADER.items() if name in headers)
    return next(by_header, None) or next((found for name, found in _BY_AGENT.items() if name in agent), OPENAI)
