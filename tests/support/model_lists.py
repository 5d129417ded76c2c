"""Providers with lists of models, and the proxy's routes for models, in the process of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.billing.pricing.rules import NOBODY
from proxy.foundation.tasks import Tasks
from proxy.gateway.models.catalogue import Catalogue
from proxy.gateway.models.fetched_lists import FetchedLists
from proxy.gateway.models.handler import ModelsHandler
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.http.server import Routes, Server
from proxy.keys.access import KeyAccess, Refused
from proxy.keys.keyring import Keyring
from proxy.metering.dialects import DIALECTS
from proxy.settings import parse
from tests.support.web_server import serving

KEY = ApiKey("k", "k", b"", "", models=None, created_at=0.0, expires_at=None, revoked_at=None, revision=1)
PROVIDER_SECRET = "sk-canary-provider-secret"

# As the providers' own pages show them.
LISTS: Mapping[str, Any] = {
    "/openai/models": {
        "object": "list",
        "data": [
            {"id": "gpt-4o", "object": "model", "created": 1715367049, "owned_by": "system"},
            {"id": "gpt-4o-mini", "object": "model", "created": 1721172741, "owned_by": "system"},
            {"id": "meta/llama-3", "object": "model", "created": 1, "owned_by": "meta", "context_length": 131072},
        ],
    },
    "/anthropic/models": {
        "data": [
            {
                "type": "model", "id": "claude-opus-4-5-20251101", "display_name": "Claude Opus 4.5",
                "created_at": "2025-11-24T00:00:00Z", "lifecycle": "active", "max_input_tokens": 200000,
                "max_tokens": 64000, "capabilities": {"batch": {"supported": True}},
            },
            {
                "type": "model", "id": "claude-3-haiku-20240307", "display_name": "Claude Haiku 3",
                "created_at": "2024-03-07T00:00:00Z", "lifecycle": "deprecated",
            },
        ],
        "has_more": False, "first_id": "claude-opus-4-5-20251101", "last_id": "claude-3-haiku-20240307",
    },
    "/gemini/models": {
        "models": [
            {
                "name": "models/gemini-2.5-flash", "version": "001", "displayName": "Gemini 2.5 Flash",
                "inputTokenLimit": 1048576, "outputTokenLimit": 65536,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            },
            {"name": "models/embedding-001", "supportedGenerationMethods": ["embedContent"]},
        ],
    },
    "/cohere/v1/models": {
        "models": [
            {"name": "command-r-plus", "endpoints": ["generate", "chat"], "context_length": 128000},
            {"name": "embed-v4.0", "endpoints": ["embed"]},
        ],
    },
    "/mistral/models": {
        "object": "list",
        "data": [
            {
                "id": "codestral-latest", "object": "model", "created": 1700000000, "owned_by": "mistralai",
                "capabilities": {"completion_chat": True, "completion_fim": True}, "max_context_length": 32768,
            },
            {"id": "mistral-small", "capabilities": {"completion_chat": True, "completion_fim": False}},
        ],
    },
    "/ollama/tags": {
        "models": [
            {
                "name": "llama3.2:latest", "model": "llama3.2:latest", "size": 1,
                "modified_at": "2026-05-04T17:37:44.706015396-07:00",
            },
        ],
    },
}  # fmt: skip
_DIALECTS = {"cohere": ["cohere", "openai.rerank"], "mistral": ["mistral", "openai.chat"]}
_ENDS = {"cohere": "/cohere/v2"}


@dataclass
class Upstream:
    """Answers of the providers, and the received requests."""

    url: str = ""
    answers: dict[str, bytes] = field(
        default_factory=lambda: {path: json.dumps(LISTS[path]).encode() for path in LISTS}
    )
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    """path with query, headers"""
    silent: bool = False
    """while true, requests are accepted and not answered"""

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append((request.raw_path, dict(request.headers)))
        while self.silent:
            await asyncio.sleep(0.01)
        answer = self.answers.get(request.path)
        if answer is None:
            return web.Response(status=404, text="no such route")
        return web.Response(status=self.status, body=answer, content_type="application/json", headers=self.headers)

    def section(self, family: str) -> dict[str, Any]:
        dialects = _DIALECTS.get(family, [family])
        base_url = self.url + _ENDS.get(family, f"/{family}")
        return {"base_url": base_url, "api_key": PROVIDER_SECRET, "dialects": dialects}


@dataclass
class Listing:
    """The routes for models. `key`: the key of the token `good`."""

    url: str
    upstream: Upstream
    catalogue: Catalogue
    lists: FetchedLists
    key: ApiKey = KEY
    now: float = 0.0
    """clock of the lists, in seconds"""

    def allow(self, *models: str) -> None:
        self.key = replace(KEY, models=frozenset(models))


class _Keys(Keyring):
    """A keyring with one key, for the token `good`."""

    listing: Listing

    def __init__(self) -> None: ...

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | Refused:
        if presented is None:
            return Refused.MISSING
        return self.listing.key if presented == "good" else Refused.UNKNOWN

    def access(self, key: ApiKey) -> KeyAccess:
        return KeyAccess(blocked=False, scopes=(), payer=NOBODY, cost_in_answers=False)


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """Providers of all families, on one port."""
    made = Upstream()
    async with serving(made.serve) as made.url:
        yield made


@asynccontextmanager
async def listing(
    providers: Upstream, models: Mapping[str, Any], *families: str, **more: Any
) -> AsyncIterator[Listing]:
    """The proxy's routes for `models`. `families`: its providers; `more`: settings of others, by their names."""
    sections = {family: providers.section(family) for family in families} | more
    written = yaml.safe_dump({"providers": sections, "models": dict(models), "allow_literal_secrets": True})
    settings = parse(written, env={}, folder=Path())
    client, tasks, keys = UpstreamClient(), Tasks(), _Keys()
    built = {name: Provider.of(one, write_stall_s=60) for name, one in settings.providers.items()}
    lists = FetchedLists(client, tasks, now=lambda: made.now)
    catalogue = Catalogue(settings.models, built, lists)
    routes = Routes()
    for dialect in DIALECTS:
        routes.metered(dialect, _unmetered)
    ModelsHandler(keys, catalogue).add_to(routes)
    server = Server(routes, refused=lambda _status, _code: None)
    port = await server.start("127.0.0.1", 0)
    keys.listing = made = Listing(f"http://127.0.0.1:{port}", providers, catalogue, lists)
    try:
        yield made
    finally:
        await server.stop_listening()
        await server.close()
        await tasks.stop()
        await client.close()


async def _unmetered(*_: object) -> web.StreamResponse:
    raise AssertionError("no exchange is begun here")
