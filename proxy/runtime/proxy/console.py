"""The admin listener of one proxy process.

Invariants: it is off without a secret; it reads the ledger on its own threads, so that it delays no stream.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec

from proxy.billing.keys import ApiKey
from proxy.budgets.store import BudgetStore
from proxy.console.api.accounts import AccountsApi
from proxy.console.api.adjustments import AdjustmentsApi
from proxy.console.api.audited_operations import AuditedOperations
from proxy.console.api.budgets import BudgetsApi
from proxy.console.api.delivery import DeliveryApi
from proxy.console.api.endpoints import HEADERS, Endpoint, add, add_session
from proxy.console.api.erasure import ErasureApi
from proxy.console.api.exchanges import ExchangesApi
from proxy.console.api.grants import GrantsApi
from proxy.console.api.keys import KeysApi
from proxy.console.api.limits import LimitsApi
from proxy.console.api.live import LiveApi
from proxy.console.api.models import ModelsApi
from proxy.console.api.openapi import document
from proxy.console.api.own_key import OwnKeyApi
from proxy.console.api.periods import PeriodsApi
from proxy.console.api.providers import ProvidersApi
from proxy.console.api.refusals import RefusalsApi
from proxy.console.api.rerating import RerateApi
from proxy.console.api.sessions import Sessions
from proxy.console.api.statement_sending import StatementSendingApi
from proxy.console.api.statements import StatementsApi
from proxy.console.api.status import StatusApi, me
from proxy.console.api.usage import UsageApi
from proxy.console.api.usage_report import UsageReportApi
from proxy.console.caller_threads import CallerThreads
from proxy.console.identity_sign_in import IdentitySignIn
from proxy.console.ledger_reports import LedgerReports
from proxy.console.page_routes import add_page
from proxy.foundation.addresses import shown_host
from proxy.gateway.key_info.allowance import KeyAllowance
from proxy.gateway.key_info.reading import KeyReads
from proxy.http.errors import JSON_TYPE
from proxy.http.probes import HEALTHZ, constant
from proxy.http.refused_requests import RefusedRequest
from proxy.http.server import Routes, Server
from proxy.keys.keyring import Keyring
from proxy.ledger.accounts.owners import payer_of
from proxy.ledger.dimensions.values import DimensionValues
from proxy.reports.dimensions import ValueReader
from proxy.reports.totals import read_paid
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.runtime.machine.price_lookup import PriceLookup
from proxy.runtime.machine.unsettled import closing_checks, unsettled
from proxy.runtime.proxy.deployment_state import DeploymentState
from proxy.runtime.proxy.running_exchanges import RunningExchanges
from proxy.settings import Settings, route
from proxy.settings.listeners import AdminSettings
from proxy.settings.statement import StatementSettings
from proxy.sinks.kinds import receiving_details
from proxy.storage.executor import BoundedExecutor

# A few reads of the ledger at once and a few that wait, so that no dashboard slows the settling down.
THREADS = 2
WAITING_MAX = 32
# A mail server may take 30 s, and so may the repricing of many requests: meanwhile other operators block keys and stop
# streams.
LONG_THREADS = 2
LONG_WAITING_MAX = 8


class Console:
    """`start` it after the keyring is filled, `close` it before the engine is disposed."""

    def __init__(
        self,
        settings: Settings,
        store: LedgerStores,
        keyring: Keyring,
        budgets: BudgetStore,
        running: RunningExchanges,
        refusals: Callable[[], Awaitable[Sequence[RefusedRequest]]],
        state: DeploymentState,
        models: Callable[[ApiKey], Awaitable[Iterable[str]]],
    ) -> None:
        """`refusals`: the latest refusals, the newest first. `models`: the names in the list of models of a key."""
        self._settings = settings
        self._store = store
        self._keyring = keyring
        self._budgets = budgets
        self._running = running
        self._refusals = refusals
        self._state = state
        self._models = models
        self.threads = CallerThreads(THREADS, name="console", waiting_max=WAITING_MAX)
        """for reads and changes of the ledger"""
        self._long_threads = BoundedExecutor(LONG_THREADS, name="long console", waiting_max=LONG_WAITING_MAX)
        """for what takes long: sending, repricing, final statements"""
        self._server: Server | None = None
        self._reports = LedgerReports(store.engine, self.threads, running.key_of, store.end_user_pepper())
        self.url: str | None = None
        """the URL of the console; None: it does not listen"""

    def add_public(self, routes: Routes, reads: KeyReads) -> None:
        """Add the endpoints on the clients' listener: an exchange for its key, and prices and rotation of a key.
        `reads`: in place of the console's threads and connections."""
        reports = LedgerReports(reads.engine, reads.threads, self._running.key_of, self._store.end_user_pepper())
        sessions, own = Sessions(self._keyring, None, time.time), self._own_key(reads.threads, reads.allowance)
        add(routes, ExchangesApi(reports, self._hides_providers).one_endpoint, sessions)
        add(routes, own.rotate_endpoint, sessions)
        if self._settings.key_info:
            add(routes, own.prices_endpoint, sessions)

    async def start(self, refused: Callable[[int, str | None], None], sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, if a secret is configured. `sockets`: in place of the address in the settings. Raises OSError,
        SettingsError for a certificate's file."""
        admin = self._settings.admin
        if not admin.is_on:
            return
        routes = Routes()
        identity = _identity_sign_in(admin, self._store)
        sessions = Sessions(self._keyring, admin, time.time, None if identity is None else identity.operators)
        table = list(self._table(sessions))
        who = partial(me, allows_rotation=self._allows_rotation)
        add_session(routes, who, sessions, None if identity is None else identity.link)
        if identity is not None:
            identity.add(routes, sessions)
        for endpoint in table:
            add(routes, endpoint, sessions)
        routes.local("GET", "/openapi.json", constant(msgspec.json.encode(document(table)), JSON_TYPE))
        routes.local("GET", "/healthz", HEALTHZ)
        add_page(routes)
        self._server = Server(routes, refused=refused, headers=HEADERS)
        port = await self._server.start(admin.host, admin.port, section="admin", sockets=sockets)
        self.url = f"http://{shown_host(admin.host)}:{port}"

    def _hides_providers(self) -> bool:
        return self._state.configuration.settings.hide_providers

    def _allows_rotation(self) -> bool:
        return self._state.configuration.settings.key_rotation

    def _own_key(self, threads: BoundedExecutor, allowance: KeyAllowance) -> OwnKeyApi:
        return OwnKeyApi(
            self._store.keys, AuditedOperations(self._store.audit_log, threads, self._keyring), threads, allowance,
            pepper=self._store.pepper(), unix_time=time.time, models=self._models,
            payer=self._keyring.payer, prices=self._state.own_prices,
            allows_rotation=self._allows_rotation,
        )  # fmt: skip

    def _is_configured(self, model: str) -> bool:
        return route(self._state.configuration.settings.models, model) is not None

    def _prices(self) -> PriceLookup:
        configuration = self._state.configuration
        return PriceLookup(configuration.settings, configuration.book, payer_of(self._store.engine))

    def _letterhead(self) -> StatementSettings:
        return self._state.configuration.settings.statement

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets that the console listens on."""
        return [] if self._server is None else self._server.sockets

    async def leave_to_another(self) -> None:
        """Accept no new connections: those of the process that takes over have its operators."""
        if self._server is not None:
            await self._server.leave_to_another()

    async def close(self) -> None:
        """Stop listening, and end the threads."""
        if self._server is not None:
            await self._server.stop_listening()
            await self._server.close()
        await asyncio.to_thread(self._long_threads.close)
        await asyncio.to_thread(self.threads.close)

    def _table(self, sessions: Sessions) -> Iterable[Endpoint]:
        """Every endpoint that authenticates its caller. Of two paths that begin alike, the longer one comes first: a
        name may contain a slash."""
        store = self._store
        operations = AuditedOperations(store.audit_log, self.threads, self._keyring)
        long_operations = AuditedOperations(store.audit_log, self._long_threads, self._keyring)
        paid = partial(read_paid, store.engine)
        keys = KeysApi(
            store.engine, store.keys, store.accounts, operations, self.threads, pepper=store.pepper(),
            lifetime_max_s=self._settings.key_lifetime_max, unix_time=time.time, paid=paid,
            counter_states=self._budgets.counter_states,
        )  # fmt: skip
        accounts = AccountsApi(
            store.engine, store.accounts, store.keys, store.ledger, operations, self.threads, unix_time=time.time,
            paid=paid, counter_states=self._budgets.counter_states,
        )  # fmt: skip
        values = DimensionValues(store.engine)
        status = StatusApi(self.threads, store.audit_log, self._allows_rotation)
        yield from UsageApi(self._reports, unix_time=time.time).endpoints()
        yield from UsageReportApi(self._reports, unix_time=time.time, hides_providers=self._hides_providers).endpoints()
        yield from AdjustmentsApi(store.engine, store.ledger, operations).endpoints()
        yield from LiveApi(
            self._running.running, self._running.stop, operations, sessions, unix_time=time.time,
            hides_providers=self._hides_providers,
        ).endpoints()  # fmt: skip
        yield from ExchangesApi(self._reports, self._hides_providers).endpoints()
        yield from RefusalsApi(self._refusals, self._reports).endpoints()
        yield from ProvidersApi(
            store.engine, self.threads, configured=self._state.providers, states=self._state.provider_states,
            unix_time=time.time,
        ).endpoints()  # fmt: skip
        yield from ModelsApi(self._reports, configured=self._state.models, unix_time=time.time).endpoints()
        yield from RerateApi(
            store.engine, store.ledger, long_operations, self._long_threads, is_configured=self._is_configured,
            configured_prices=self._prices, unix_time=time.time,
        ).endpoints()  # fmt: skip
        statements = StatementsApi(
            store.engine, self.threads, store.accounts, store.keys, store.audit_log, letterhead=self._letterhead,
            unix_time=time.time, hides_providers=self._hides_providers,
        )  # fmt: skip
        yield from StatementSendingApi(statements, operations, long_operations).endpoints()
        yield from statements.endpoints()
        yield from PeriodsApi(
            store.engine, store.ledger, operations, self.threads, self._long_threads,
            unsettled=partial(unsettled, self._settings, store.engine, in_thread=self.threads.run),
            checks=partial(closing_checks, self._settings, store.engine, in_thread=self.threads.run),
            letterhead=self._letterhead, unix_time=time.time,
        ).endpoints()  # fmt: skip
        yield from DeliveryApi(store.engine, self.threads, sinks=partial(self._state.sinks, store.engine)).endpoints()
        yield from status.endpoints()
        yield from self._own_key(self.threads, KeyAllowance()).endpoints()
        yield from BudgetsApi(
            store.engine, self.threads, counter_states=self._budgets.counter_states,
            values=ValueReader(store.engine, None), unix_time=time.time,
        ).endpoints()  # fmt: skip
        yield from keys.endpoints()
        yield from accounts.endpoints()
        yield from GrantsApi(
            store.grants, store.keys, store.accounts, operations, self.threads, unix_time=time.time
        ).endpoints()
        yield from LimitsApi(
            store.rules, store.keys, store.accounts, store.limits, values, operations, self.threads,
            pepper=store.end_user_pepper(),
        ).endpoints()  # fmt: skip
        yield from ErasureApi(
            store.engine, store.accounts, operations, self.threads, store.pepper(),
            partial(receiving_details, configured=self._settings.sinks),
        ).endpoints()  # fmt: skip


def _identity_sign_in(admin: AdminSettings, store: LedgerStores) -> IdentitySignIn | None:
    """The sign-in by the identity provider; None: it is off. Raises SettingsError."""
    oidc = admin.oidc
    if oidc is None:
        return None
    assert admin.public_url is not None, "checked with the settings"
    return IdentitySignIn(oidc, admin.public_url, store.pepper(), unix_time=time.time)
