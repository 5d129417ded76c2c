"""Reads the model list of each family of providers. Pure.

Invariant: the only texts taken from a provider are names that a configuration could contain, without its secret.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from proxy.gateway.models import words
from proxy.gateway.models.listed_model import ListedModel, ModelStatus, dialects_of
from proxy.gateway.models.words import Words
from proxy.metering.dialect import KeyHeader
from proxy.settings import ProviderSettings

# The longest list of 2026 has some hundred models.
MODELS_MAX = 2_000
# As names in the configuration, without wildcards. None may be longer than a name in a path.
_NAME = re.compile(r"[A-Za-z0-9@][A-Za-z0-9_.:/@+-]{0,199}", re.ASCII)
# The last second of the year 9999: a later one has no date.
_UNIX_MAX = 253_402_300_799
# A larger number of tokens is a mistake, and beyond the exact integers of JavaScript clients.
_TOKENS_MAX = 2**53 - 1


class UnreadableListError(Exception):
    """The answer is no list of models in the family's format."""


@dataclass(frozen=True, slots=True)
class ProviderList:
    """The path and the format of a family's model list."""

    path: str = "/models"
    """the path after the base URL"""
    instead_of: str = ""
    """the end of the base URL that `path` replaces"""
    key_header: KeyHeader = KeyHeader.AUTHORIZATION
    headers: str = ""
    name: str = "id"
    """the member that contains a model's name"""
    prefix: str = ""
    """the prefix of each name"""
    words: Words = field(default_factory=dict)
    """the family's words for the uses of a model"""


_OPENAI = ProviderList(words=words.MISTRAL)  # of the copies of OpenAI's list, only Mistral's reports uses
PROVIDER_LISTS: dict[str, ProviderList] = {
    "openai": _OPENAI,
    "mistral": _OPENAI,
    "anthropic": ProviderList(
        "/models?limit=1000", key_header=KeyHeader.X_API_KEY, headers="anthropic-version: 2023-06-01\r\n"
    ),
    "gemini": ProviderList(
        "/models?pageSize=1000",
        key_header=KeyHeader.X_GOOG_API_KEY, name="name", prefix="models/", words=words.GEMINI,
    ),
    "cohere": ProviderList("/v1/models?page_size=1000", instead_of="/v2", name="name", words=words.COHERE),
    "ollama": ProviderList("/tags", name="model"),
}  # fmt: skip
"""family → its list. Without Azure, which does not list deployments, the names in its requests. Bedrock and Vertex list
their models elsewhere."""


def provider_list(settings: ProviderSettings) -> ProviderList | None:
    """The list of the first family of the provider that has one; None: no family has one."""
    families = (name.partition(".")[0] for name in settings.dialects)
    return next((PROVIDER_LISTS[family] for family in families if family in PROVIDER_LISTS), None)


class _Row(msgspec.Struct):
    """The members that are read of a model, of any type."""

    id: Any = None
    name: Any = None
    model: Any = None
    created: Any = None
    created_at: Any = None
    modified_at: Any = None
    context_length: Any = None
    context_window: Any = None
    max_context_length: Any = None
    max_input_tokens: Any = None
    inputTokenLimit: Any = None  # noqa: N815  Google's name
    max_tokens: Any = None
    max_completion_tokens: Any = None
    outputTokenLimit: Any = None  # noqa: N815
    lifecycle: Any = None
    supportedGenerationMethods: Any = None  # noqa: N815
    endpoints: Any = None
    capabilities: Any = None


class _Answer(msgspec.Struct):
    # Rows are decoded one by one: an odd one must not hide the others, and a million of them must not take the time.
    data: list[msgspec.Raw] | None = None
    models: list[msgspec.Raw] | None = None


_decode = msgspec.json.Decoder(_Answer | list[msgspec.Raw]).decode
_row = msgspec.json.Decoder(_Row).decode
_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


def read_list(answer: bytes, of: ProviderList, settings: ProviderSettings) -> tuple[ListedModel, ...]:
    """The models of a provider's answer, in its order. Raises UnreadableListError."""
    try:
        document = _decode(answer)
    except _ERRORS:
        raise UnreadableListError("not a list of models") from None
    rows = document if isinstance(document, list) else document.models if document.data is None else document.data
    if rows is None:
        raise UnreadableListError("no list of models")
    served = dialects_of(settings.dialects)
    found: dict[str, ListedModel] = {}
    for row in _rows(rows[:MODELS_MAX]):
        name = _name(row, of)
        if name:
            found.setdefault(name, _model(name, row, of, settings.name, served))
    if rows and not found:
        raise UnreadableListError("no names of models")
    return tuple(one for one in found.values() if one.dialects)


def _rows(raw: Iterable[msgspec.Raw]) -> Iterator[_Row]:
    for one in raw:
        with suppress(*_ERRORS):
            yield _row(one)


def _name(row: _Row, of: ProviderList) -> str:
    """The model's name; empty if it cannot be requested."""
    told = getattr(row, of.name)
    name = told.removeprefix(of.prefix) if isinstance(told, str) else ""
    return name if _NAME.fullmatch(name) else ""


def _model(name: str, row: _Row, of: ProviderList, provider: str, served: frozenset[str]) -> ListedModel:
    told = _uses(row, of.words)
    refused = set() if told is None else {dialect for dialect, word in of.words.items() if word not in told}
    return ListedModel(
        name=name,
        provider=provider,
        dialects=served - refused,
        created=_unix(row.created) or _unix(row.created_at) or _unix(row.modified_at),
        input_tokens_max=_first(
            row.max_input_tokens, row.inputTokenLimit, row.context_length, row.context_window, row.max_context_length
        ),
        output_tokens_max=_first(row.max_tokens, row.outputTokenLimit, row.max_completion_tokens),
        lifecycle=ModelStatus(row.lifecycle) if row.lifecycle in tuple(ModelStatus) else ModelStatus.ACTIVE,
    )


def _uses(row: _Row, words: Words) -> Collection[object] | None:
    """The provider's words for the uses of the model; None: not reported."""
    for told in (row.supportedGenerationMethods, row.endpoints):
        if isinstance(told, list):
            return told
    told = row.capabilities
    if isinstance(told, dict) and not told.keys().isdisjoint(words.values()):
        return [word for word, true in told.items() if true is True]
    return None


def _first(*told: object) -> int:
    """The first number of tokens; 0: there is none."""
    return next(filter(None, (_number(one, _TOKENS_MAX) for one in told)), 0)


def _unix(told: object) -> int:
    """Unix seconds of a number or an RFC 3339 text; 0 if it is neither."""
    if isinstance(told, str):
        try:
            told = datetime.fromisoformat(told).timestamp()
        except (ValueError, OverflowError):
            return 0
    return _number(told, _UNIX_MAX)


def _number(told: object, most: int) -> int:
    """A whole number up to `most`; 0 if it is none."""
    counts = isinstance(told, int | float) and not isinstance(told, bool) and 0 < told <= most
    return int(told) if counts else 0  # type: ignore[call-overload]
