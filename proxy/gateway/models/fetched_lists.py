"""Fetches and keeps the lists of models of providers.

Invariants: at most one request to a provider runs at a time, for all clients that wait; it continues when they leave.
After a failure, the provider's earlier list is kept. Failures do not change the provider's health.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from proxy.foundation.tasks import Tasks
from proxy.gateway.models.listed_model import ListedModel
from proxy.gateway.models.provider_lists import ProviderList, UnreadableListError, provider_list, read_list
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider

# A person waits for the list, at most once in RETRY_S for a provider that hangs.
FETCH_S = 4.0
# Providers publish a model every few weeks; a new deployment of one's own should be seen soon.
FRESH_S = 300.0
RETRY_S = 60.0
# The longest list known, an aggregator's with descriptions, has 0.7 MB. Reading it takes the event loop 10 ms.
LIST_BYTES_MAX = 2 << 20

_log = logging.getLogger(__name__)

Models = tuple[ListedModel, ...]


@dataclass(slots=True)
class _Kept:
    """The kept list of one provider."""

    provider: Provider
    models: Models | None = None
    """the models of the last list; None: never read"""
    due_at: float = 0.0
    """when the list is fetched again, if a client requests it"""
    fetching: asyncio.Task[None] | None = None
    failure: str = ""
    """why the last attempt failed; empty: it succeeded"""


class FetchedLists:
    """The lists of all providers, fetched on request."""

    def __init__(self, client: UpstreamClient, tasks: Tasks, *, now: Callable[[], float] = monotonic) -> None:
        self._client = client
        self._tasks = tasks
        self._now = now
        self._kept: dict[str, _Kept] = {}

    async def of(self, providers: Iterable[Provider]) -> dict[str, Models]:
        """Provider's name → its models; without providers that have no list, or whose list was never read."""
        asked = [(provider, self._refreshed(provider)) for provider in providers]
        running = [kept.fetching for _, kept in asked if kept.fetching is not None]
        if running:
            await asyncio.wait(running)  # not `gather`: a client that leaves would cancel it for the others
        return {provider.settings.name: kept.models for provider, kept in asked if kept.models is not None}

    def _refreshed(self, provider: Provider) -> _Kept:
        """Begin to fetch the list if it is due."""
        name = provider.settings.name
        kept = self._kept.get(name)
        if kept is None or kept.provider is not provider:  # a reload has changed its settings
            kept = self._kept[name] = _Kept(provider)
        where = provider_list(provider.settings)
        if where is not None and kept.fetching is None and self._now() >= kept.due_at:
            kept.fetching = self._tasks.start(self._refresh(provider, where, kept), name=f"models of {name}")
        return kept

    async def _refresh(self, provider: Provider, where: ProviderList, kept: _Kept) -> None:
        kept.due_at = self._now() + RETRY_S
        try:
            kept.models, failure = await self._fetched(provider, where), ""
            kept.due_at = self._now() + FRESH_S
        except (UpstreamFailedError, UnreadableListError) as wrong:
            failure = str(wrong)
        except TimeoutError:
            failure = f"no answer within {FETCH_S:g} s"
        finally:
            kept.fetching = None
        if failure and failure != kept.failure:
            _log.warning("the models of provider %s cannot be listed: %s", provider.settings.name, failure)
        kept.failure = failure

    async def _fetched(self, provider: Provider, where: ProviderList) -> Models:
        """Fetch and read the list. Raises UpstreamFailedError, UnreadableListError, TimeoutError."""
        request = provider.get(where.path, where.key_header, where.headers, instead_of=where.instead_of)
        async with asyncio.timeout(FETCH_S):
            answer = await self._client.ask(provider, request)
            try:
                if answer.status != 200:
                    raise UnreadableListError(f"HTTP status {answer.status}")
                body = await answer.read(LIST_BYTES_MAX)
            finally:
                answer.close()
        if body is None:
            raise UnreadableListError(f"longer than {LIST_BYTES_MAX >> 20} MiB")
        readable = answer.readable(body)
        if readable is None:
            raise UnreadableListError("compressed")
        # In a thread, so that streams continue between two models; they wait only while the body is split into models.
        listed = await asyncio.to_thread(read_list, readable, where, provider.settings)
        return tuple(one for one in listed if not provider.is_revealed_by(one.name.encode()))
