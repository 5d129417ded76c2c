"""Checks that a base URL is the address of a provider's API, and suggests other addresses. Pure.

Invariant: a probe generates no tokens: it requests a list, or has an empty body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from proxy.gateway.models.provider_lists import provider_list
from proxy.metering.dialect import NAME
from proxy.metering.dialects import DIALECTS, supports
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE
from proxy.settings import ProviderSettings
from proxy.settings.environment import KNOWN

# Family → the usual end of its base URLs.
_ENDS = {
    "openai": "/v1", "anthropic": "/v1", "mistral": "/v1", "azure": "/openai", "cohere": "/v2", "ollama": "/api",
    "gemini": "/v1beta", "bedrock": "",
}  # fmt: skip


class Probe(NamedTuple):
    """A free request, which a provider answers only if it accepts the key."""

    method: str
    path: str
    body: dict[str, Any] | None
    purpose: str
    """the resource, in messages: `404 for its list of models`"""
    refusals: tuple[bytes, ...] = ()
    """see `Dialect.credential_refusals`; empty: every 403 is about the key"""
    headers: str = ""
    """further header lines, each with its CRLF"""
    instead_of: str = ""
    """the end of the base URL that `path` replaces; the answer proves nothing about this end"""


# Bedrock lists its models at another host. To an accepted key it answers that there is no such model, or that the model
# is not allowed.
_BEDROCK = Probe(
    "POST", "/model/tokenweir.doctor/converse", {}, "a model that does not exist", BEDROCK_CONVERSE.credential_refusals
)
_NO_SUCH_MODEL = b"ResourceNotFoundException"


def first_probe(provider: ProviderSettings) -> Probe:
    """The probe of the key: the list of models, if the dialect family has one."""
    if supports(provider.dialects, BEDROCK_CONVERSE):
        return _BEDROCK
    listed = provider_list(provider)
    if listed is None:
        path = "/v1/models" if "azure" in _families(provider) else "/models"
        return Probe("GET", path, None, "its list of models")
    path, _, _ = listed.path.partition("?")
    return Probe("GET", path, None, "its list of models", headers=listed.headers, instead_of=listed.instead_of)


def endpoint_probe(provider: ProviderSettings) -> Probe | None:
    """The probe of an endpoint, by an empty request. None: no endpoint has a fixed path."""
    paths = [
        dialect.upstream_path for dialect in DIALECTS if dialect.is_posted and supports(provider.dialects, dialect)
    ]
    path = next((one for one in paths if NAME not in one), None)
    return None if path is None else Probe("POST", path, {}, path)


def has_no_fixed_path(provider: ProviderSettings) -> bool:
    """True for Vertex AI: its base URL names a project, and its paths name a model."""
    return _families(provider)[0] == "vertex"


def is_api(probe: Probe, status: int, text: bytes) -> bool:
    """True if an answer comes from the API: not from a web page, a redirect, or a server that lacks the path."""
    if 300 <= status < 400:
        return False
    document = _json(text)
    if status in (404, 405):  # some report an unknown model so
        if probe is _BEDROCK:
            return _NO_SUCH_MODEL in text
        return probe.method == "POST" and isinstance(document, dict) and b"model" in text.lower()
    return status >= 400 or not text.strip() or document is not None


def candidates(provider: ProviderSettings) -> list[str]:
    """Other base URLs at the same host, the likeliest first."""
    parts = urlsplit(provider.base_url)
    known = [one.base_url for one in KNOWN if one.base_url and urlsplit(one.base_url).netloc == parts.netloc]
    built = [f"{parts.scheme}://{parts.netloc}{path}" for path in _paths(parts.path, _ENDS.get(_families(provider)[0]))]
    return [url for url in dict.fromkeys([*known, *built]) if url != provider.base_url]


def likely_base_url(provider: ProviderSettings) -> str | None:
    """The most likely correct URL for a base URL without a path. None: it has a path, or needs none."""
    if urlsplit(provider.base_url).path.strip("/") or not _ENDS.get(_families(provider)[0]):
        return None
    return next(iter(candidates(provider)), None)


def _paths(path: str, end: str | None) -> Iterator[str]:
    if end is None:
        return
    parent, _, last = path.rpartition("/")
    if parent.endswith(f"/{last}"):  # the version twice
        yield parent
    yield path + end
    yield parent + end
    yield parent


def _families(provider: ProviderSettings) -> list[str]:
    return [name.partition(".")[0] for name in provider.dialects]


def _json(text: bytes) -> Any:
    """The JSON object or list; None: the text is neither."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict | list) else None
