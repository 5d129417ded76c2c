"""Makes batches: checks, prices, reserves and stores them before the request to the provider.

Invariants: a batch is in the database before the request to its provider, and its id before the response to the client.
Its quote stays reserved until its entry is in the ledger. If the provider refuses the batch, it is deleted; if the
result of the request is unknown, the watcher determines it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from aiohttp import web
from msgspec import UNSET, UnsetType

from proxy.billing.batch import (
    BatchInput,
    BatchState,
    StoredBatch,
    Terms,
    batch_quote,
)
from proxy.billing.dimensions import Dimensions
from proxy.billing.ending import FREE
from proxy.billing.keys import ApiKey
from proxy.billing.limits import NOTHING_MEASURED, Measured, Scope, measured
from proxy.billing.money import Nusd
from proxy.billing.pricing.prices import can_quote
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Outcome, Price
from proxy.billing.reservation import Denied
from proxy.budgets.admission import Admission, OpenReservation
from proxy.foundation.ids import exchange_id
from proxy.gateway.batches.access import Access, Asked, passed_on
from proxy.gateway.batches.asking import object_in, posting_to
from proxy.gateway.batches.lines_in import batch_ways
from proxy.gateway.batches.settling import BatchSettler
from proxy.gateway.batches.watcher import FOUND_S, Watcher
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.exchange.refusals import RequestedAmounts, refusal
from proxy.gateway.passing import passed
from proxy.gateway.ports import RequestLimits
from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.failures import NotSentError, UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route
from proxy.http import errors
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.keys.access import KeyAccess
from proxy.metering.stored_objects.api import BatchApi

# As many batches as a node polls in a quarter of an hour.
UNFINISHED_MAX = 1_000
# By then the batch is in the provider's list.
SOON_S = 15.0


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that a client wants to make."""

    read: BatchInput
    names: Mapping[str, Sequence[str]]
    """model → the names of its lines, if there are several models"""
    provider: Provider
    credential: str | None
    input_file: str | None
    body: Sequence[bytes]
    """the body of the request to the provider, in pieces"""
    members: Mapping[str, Any]
    """the request's own members, without those of its lines"""


class BatchMaker:
    """Makes batches."""

    def __init__(
        self,
        access: Access,
        settler: BatchSettler,
        watcher: Watcher,
        *,
        client: UpstreamClient,
        models: Models,
        admission: Admission,
        limits: RequestLimits,
        access_of: Callable[[ApiKey], KeyAccess],
        dimensions: RequestDimensions,
        unix_time: Callable[[], float],
    ) -> None:
        self._access = access
        self._settler = settler
        self._watcher = watcher
        self._client = client
        self._models = models
        self._admission = admission
        self._limits = limits
        self._access_of = access_of
        self._dimensions = dimensions
        self._unix_time = unix_time
        self._making: set[asyncio.Task[web.StreamResponse]] = set()

    async def aclose(self) -> None:
        """Stop, and leave unfinished batches to the watcher."""
        making = list(self._making)
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    async def make(self, made_for: Asked, new: NewBatch) -> web.StreamResponse:
        """Make the batch. Raises ApiError if it was not made, or this is not known yet."""
        sent = self._dimensions.sent(made_for.key, made_for.request.headers, made_for.api.name, new.members)
        dimensions = await self._dimensions.ids(made_for.key, sent) if sent else UNSET
        batch, terms, reservation = await self._admitted(made_for, new, dimensions)
        kept = False
        try:
            await self._remembered(batch, terms)
            kept = True
            self._watcher.admitted(batch.exchange_id)
        finally:
            if not kept:
                reservation.close(0, 0)
        # A sent request continues if the client leaves or this process stops.
        making = asyncio.get_running_loop().create_task(self._made(made_for, new, batch, reservation))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        return await asyncio.shield(making)

    # -- before the request to the provider

    async def _admitted(
        self, made_for: Asked, new: NewBatch, dimensions: Dimensions | UnsetType
    ) -> tuple[StoredBatch, tuple[Terms, ...], OpenReservation]:
        key, made, reserve = made_for.key, exchange_id(), self._limits.reserve
        scopes, now = self._levels(key, new, dimensions), self._unix_time()
        terms = self._terms(made_for, new, now, dimensions)
        price_of = {one.model: one.price for one in terms}
        if any(scope.limits.spends for scope in scopes):
            for share in new.read.shares:
                _require_price(share.model, price_of[share.model], share.units, generates=share.completion_tokens > 0)
        priced = [(share, price_of[share.model]) for share in new.read.shares]
        nusd = batch_quote(priced, nusd_max=reserve.nusd_max) if scopes else 0
        found = await self._admission.admit(
            key, scopes, made, nusd=nusd, tokens=0, at_quotas=partial(_counted, new.read)
        )
        if isinstance(found, Denied):
            wanted = _requested(new.read, nusd, reserve.completion_tokens)
            raise refusal(found, key, scopes, wanted, at=now, exceeded_status=reserve.exceeded_status)
        batch = StoredBatch(
            api=made_for.api.name, provider=new.provider.settings.name, credential=new.credential,
            key_id=key.key_id, key_alias=key.alias, project_id=key.project_id,
            created_at=found.reserved.at or now,  # in the windows in which it was admitted
            exchange_id=made, batch_id=None, state=BatchState.CREATING, endpoint=new.read.endpoint,
            input_file=new.input_file, lines=new.read.lines, names=new.read.names,
            reserved_nusd=Nusd(found.reserved.nusd) if found.spends else None,
        )  # fmt: skip
        return batch, terms, found

    def _levels(self, key: ApiKey, new: NewBatch, dimensions: Dimensions | UnsetType) -> tuple[Scope, ...]:
        """The levels of all lines: a rule for one of its models counts the whole batch. Raises ApiError."""
        access, models = self._access_of(key), {share.model for share in new.read.shares}
        provider = (new.provider.settings.name,)
        of_model = (self._dimensions.levels(key, access, model, dimensions, provider) for model in sorted(models))
        return tuple({scope.scope_id: scope for levels in of_model for scope in levels}.values())

    def _terms(
        self, made_for: Asked, new: NewBatch, now: float, dimensions: Dimensions | UnsetType
    ) -> tuple[Terms, ...]:
        """The terms of each model. The model with the most lines is last: its terms need no names. Raises ApiError."""
        payer = self._access_of(made_for.key).payer
        totals: dict[str, list[int]] = {}
        upstream: dict[str, str] = {}
        for share in new.read.shares:
            upstream[share.model] = share.upstream_model
            lines, tokens = totals.get(share.model, (0, 0))
            totals[share.model] = [lines + share.lines, tokens + share.prompt_tokens]
        *others, most = sorted(totals, key=lambda model: totals[model][0])
        made = []
        for model in (*others, most):
            price, cost = self._prices(made_for, new, model, upstream[model], now, payer)
            lines, tokens = totals[model]
            names = () if model == most else tuple(new.names[model])
            made.append(Terms(model, upstream[model], price, cost, ceil(tokens / lines), names, dimensions))
        return tuple(made)

    def _prices(
        self, made_for: Asked, new: NewBatch, model: str, upstream_model: str, now: float, payer: Payer
    ) -> tuple[Price | None, Price | None]:
        api = made_for.api
        assert isinstance(api, BatchApi)
        dialect = api.endpoints[new.read.endpoint]
        ways = batch_ways(self._models, model, made_for.key, api, dialect)
        route = next((way for way in ways if _leads_to(way, new.provider, upstream_model)), None)
        if route is None:
            message = f"input_file_id: the provider of the model '{model}' has changed: upload the file again"
            raise errors.bad_request(message, param="input_file_id", code="model_changed")
        if dialect.free:
            return FREE, FREE
        price, cost = route.prices(now, payer)
        return (price or FREE, cost or FREE) if dialect.free_unpriced else (price, cost)

    async def _remembered(self, batch: StoredBatch, terms: Sequence[Terms]) -> None:
        ports = self._access.ports

        def add() -> bool:
            # The watcher ignores the batch while this process may still make it.
            later = self._unix_time() + FOUND_S
            return ports.batches.add(batch, terms, node=ports.node, next_at=later, unfinished_max=UNFINISHED_MAX)

        if not await self._access.stored(add):
            message = f"This key has {UNFINISHED_MAX} batches that are not finished."
            raise ApiError(429, message, kind="requests", code="too_many_batches", retry_after_s=60)

    # -- the provider

    async def _made(
        self, made_for: Asked, new: NewBatch, batch: StoredBatch, reservation: OpenReservation
    ) -> web.StreamResponse:
        """Send the request, and store the result. Raises ApiError."""
        held, counted, known = batch.reserved_nusd or 0, _counted(new.read), False
        try:
            answer = await self._answer(made_for, new, batch)
            if 200 <= answer.status < 300:
                reply = await self._told(made_for, new, batch, answer)
                known = True
                return reply
            if answer.status < 500:
                held, counted, known = 0, NOTHING_MEASURED, await self._refused(batch)
            return await passed(answer, new.provider, batch.exchange_id, made_for.request, made_for.connection)
        except NotSentError as failure:
            held, counted, known = 0, NOTHING_MEASURED, await self._refused(batch)
            raise failure.refusal() from None
        finally:
            # It ends with the batch's entry, which follows those of all lines.
            reservation.close(held, 0, counted)
            if not known:
                await self._leave(batch)

    async def _answer(self, made_for: Asked, new: NewBatch, batch: StoredBatch) -> Answer:
        """The provider's answer. Raises NotSentError; ApiError if the batch may have been made."""
        wire = posting_to(
            new.provider, made_for.api, JSON_TYPE, new.body, credential=new.credential, client=made_for.request
        )
        try:
            async with asyncio.timeout(min(new.provider.limits.first_byte_s, FOUND_S / 2)):
                return await self._client.ask(new.provider, *wire)
        except NotSentError:
            raise
        except UpstreamFailedError as failure:
            raise failure.refusal() from None
        except TimeoutError:
            raise errors.upstream_stalled() from None

    async def _refused(self, batch: StoredBatch) -> bool:
        """The batch was not made: delete it. False if the database is unavailable."""
        try:
            await self._settler.close(batch, Outcome.REFUSED_UPSTREAM, None)
        except OSError:
            return False
        return True

    async def _leave(self, batch: StoredBatch) -> None:
        """Leave the batch to the watcher, which determines whether it was made."""
        ports = self._access.ports
        with suppress(OSError):
            await ports.in_thread(ports.batches.postpone, batch.exchange_id, self._unix_time() + SOON_S)

    async def _told(self, made_for: Asked, new: NewBatch, batch: StoredBatch, answer: Answer) -> web.StreamResponse:
        body = await object_in(answer, new.provider)
        api = made_for.api
        assert isinstance(api, BatchApi)
        status = api.status(body)
        if status is None:
            raise errors.upstream_failed()
        ports = self._access.ports

        def made() -> bool:
            return ports.batches.made(batch.exchange_id, status.batch_id, next_at=self._unix_time())

        if not await self._access.stored(made):
            raise errors.upstream_failed()
        return passed_on(made_for, answer, new.provider, body, batch.exchange_id)


def _requested(read: BatchInput, nusd: int, assumed: int) -> RequestedAmounts:
    return RequestedAmounts(
        nusd=nusd,
        prompt_tokens=sum(share.prompt_tokens for share in read.shares),
        completion_tokens=sum(share.completion_tokens for share in read.shares),
        assumed=assumed,
        lines=read.lines,
    )


def _counted(read: BatchInput) -> Measured:
    """The amounts of all lines at quotas."""
    prompts = sum(share.prompt_tokens for share in read.shares)
    return measured(read.lines, prompts, sum(share.completion_tokens for share in read.shares))


def _leads_to(way: Route, provider: Provider, upstream_model: str) -> bool:
    return way.provider is provider and way.upstream_model == upstream_model


def _require_price(model: str, price: Price | None, units: Any, *, generates: bool) -> None:
    """Raises ApiError if a budget cannot be enforced without a price."""
    if price is None or ((price.lacking or not price.tiers) and not can_quote(price, units, generates=generates)):
        raise errors.model_unpriced(model)
