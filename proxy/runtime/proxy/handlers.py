"""The handlers of one proxy process, and its routes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import NoReturn

from proxy.budgets.admission import Admission
from proxy.foundation.tasks import Tasks
from proxy.gateway.authentication import Accepting
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.batches.routes import add_to as add_object_routes
from proxy.gateway.budget_headers import BudgetHeaders
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.exchange.opener import ExchangeOpener
from proxy.gateway.exchange.running import ExchangeOwners
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.key_info.handler import KeyInfoHandler
from proxy.gateway.key_info.reading import KeyReads
from proxy.gateway.models.catalogue import Catalogue
from proxy.gateway.models.fetched_lists import FetchedLists
from proxy.gateway.models.handler import ModelsHandler
from proxy.gateway.outbox import Outbox
from proxy.gateway.ports import Ports, RequestLimits, Reserve
from proxy.gateway.responses.handler import ResponsesHandler
from proxy.gateway.responses.handler import add_to as add_response_routes
from proxy.gateway.resume.handler import ResumeHandler
from proxy.gateway.resume.others import Others
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.websocket.handler import WebSocketHandler
from proxy.http import errors
from proxy.http.probes import ROOT
from proxy.http.refused_requests import RefusalLog
from proxy.http.server import Routes
from proxy.keys.identities import Identities
from proxy.keys.keyring import Keyring
from proxy.metering.dialects import DIALECTS
from proxy.runtime.proxy.background import Resumption
from proxy.runtime.proxy.batches import BatchService
from proxy.runtime.proxy.configuration import Follower
from proxy.runtime.proxy.later_usage import LaterUsageService
from proxy.runtime.proxy.resources import Resources
from proxy.settings import Settings

# So many keys together can take all WebSockets, unless `websockets_per_key_max` is set.
KEYS_OF_SOCKETS = 4
STARTING = "The proxy is starting."


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of all requests of clients, the exchanges that continue in the background, and the questions about
    those that have ended."""

    exchanges: ProxyHandler
    sockets: WebSocketHandler
    models: ModelsHandler
    responses: ResponsesHandler
    batches: BatchService
    resuming: ResumeHandler | None
    """None: streams cannot be resumed"""
    key_info: KeyInfoHandler | None
    """None: keys cannot read their own data"""
    background: BackgroundExchanges
    resumption: Resumption
    later_usage: LaterUsageService


def make_handlers(
    resources: Resources,
    outbox: Outbox,
    accepting: Accepting,
    upstream: UpstreamClient,
    tapes: Tapes | None,
    others: Others,
    key_reads: KeyReads,
    dimensions: RequestDimensions,
    refusals: RefusalLog,
    tasks: Tasks,
) -> Handlers:
    """`outbox`: that of this process. `tapes`: None: streams cannot be resumed. `tasks`: for requests that continue
    without a client, and for the keys of issuers. Raises SettingsError."""
    settings, metrics, configuration = resources.settings, resources.metrics, resources.configuration
    keyring, admission, estimator = resources.keyring, resources.admission, resources.learned.estimator
    providers, models, limits = configuration.providers, configuration.models, _limits(settings)
    uploads = Uploads(body_bytes_max=settings.request_bytes_max)
    batches = BatchService(
        node=resources.node.node_id, stores=resources.store, in_thread=resources.in_thread, keyring=keyring,
        admission=admission, models=models, providers=providers, client=upstream, estimator=estimator, limits=limits,
        uploads=uploads, metrics=metrics, dimensions=dimensions, accepting=accepting,
    )  # fmt: skip
    ports = Ports(
        outbox=outbox, upstream=upstream, estimator=estimator, meters=metrics, unix_time=time.time,
        admission=admission.admission, claims=admission.claims, owners=admission.owners, dimensions=dimensions,
        traces=resources.traces, files=batches.check_files, tapes=tapes,
        budget_headers=BudgetHeaders(admission.store, tasks) if settings.budget_headers else None, refusals=refusals,
    )  # fmt: skip
    owners = ExchangeOwners()
    background = BackgroundExchanges(ports, owners)
    opener = ExchangeOpener(keys=keyring, models=models, ports=ports, limits=limits)
    exchanges = ProxyHandler(
        keys=keyring, opener=opener, ports=ports, uploads=uploads, limits=limits, accepting=accepting,
        background=background.take, owners=owners,
    )  # fmt: skip
    sockets = WebSocketHandler(
        keys=keyring, opener=opener, ports=ports, providers=providers, live=exchanges.live, owners=owners,
        uploads=uploads, limits=limits, sessions_max=settings.exchanges_max, accepting=accepting,
    )  # fmt: skip
    resuming = None if tapes is None else ResumeHandler(
        keys=keyring, tapes=tapes, others=others, stall_s=settings.write_stall_s, accepting=accepting
    )  # fmt: skip
    responses = ResponsesHandler(
        keys=keyring, owners=admission.owners, providers=providers, client=upstream, accepting=accepting,
        background=background, unix_time=time.time, resuming=resuming,
    )  # fmt: skip
    identities = _identities(keyring, tasks, settings)
    lists = FetchedLists(upstream, tasks)
    catalogue = Catalogue(settings.models, providers, lists, hides_providers=settings.hide_providers)
    configuration.followers += [
        *_followers(catalogue, opener, dimensions, identities),
        lambda settings, _providers: partial(_use_limits, settings, limits, admission.admission),
    ]
    return Handlers(
        exchanges, sockets, ModelsHandler(keyring, catalogue), responses, batches, resuming,
        KeyInfoHandler(keyring, key_reads, dimensions) if settings.key_info else None, background,
        Resumption(background, owners, ports, keyring, models, providers, admission),
        LaterUsageService(resources, configuration, upstream),
    )  # fmt: skip


def _identities(keyring: Keyring, tasks: Tasks, settings: Settings) -> Identities:
    """The clients with tokens of the configured issuers. Raises SettingsError."""
    identities = Identities(keyring, tasks, unix_time=time.time)
    identities.prepared(settings.identities)()
    return identities


def _followers(
    catalogue: Catalogue, opener: ExchangeOpener, dimensions: RequestDimensions, identities: Identities
) -> Iterable[Follower]:
    return (
        lambda settings, providers: catalogue.changed_to(
            settings.models, providers, hides_providers=settings.hide_providers
        ),
        lambda _settings, _providers: opener.forget_routes,
        lambda settings, _providers: dimensions.prepared(settings.dimensions),
        lambda settings, _providers: identities.prepared(settings.identities),
    )


def _limits(settings: Settings) -> RequestLimits:
    return RequestLimits(
        Reserve(settings.reserve.completion_tokens, settings.reserve.nusd_max, settings.budgets.exceeded_status),
        body_bytes_max=settings.request_bytes_max,
        sockets_per_key_max=settings.websockets_per_key_max or ceil(settings.exchanges_max / KEYS_OF_SOCKETS),
    )


def _use_limits(settings: Settings, limits: RequestLimits, admission: Admission) -> None:
    """Apply the limits of these settings to new requests."""
    limits.become(_limits(settings))
    admission.use_outage_policy(settings.budgets.on_store_outage, settings.budgets.outage_allowance_nusd)


def client_routes(handlers: Handlers) -> Routes:
    """The routes of a proxy that has started."""
    routes = Routes()
    for dialect in DIALECTS:
        routes.metered(dialect, handlers.exchanges.serve, handlers.sockets.serve)
    routes.local("GET", "/", ROOT)
    handlers.models.add_to(routes)
    handlers.responses.add_to(routes)
    handlers.batches.add_to(routes)
    if handlers.resuming is not None:
        handlers.resuming.add_to(routes)
    if handlers.key_info is not None:
        handlers.key_info.add_to(routes)
    return routes


def waiting_routes() -> Routes:
    """The routes of a proxy that has not started: they refuse every request."""
    routes = Routes()
    for dialect in DIALECTS:
        routes.metered(dialect, _refuse, _refuse)
    add_response_routes(routes, lambda _operation, _response_id: _refuse)
    add_object_routes(routes, lambda _apis, _operation, _object_id: _refuse)
    return routes


async def _refuse(*_request: object) -> NoReturn:
    raise errors.overloaded(STARTING, code="not_accepting")
