"""The admin listener of one proxy process. Law: it is off without a secret, and nothing of it can hold up a stream: it
reads the ledger on threads of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from sqlalchemy import Engine

from proxy.budgets.store import BudgetStore
from proxy.budgets.thresholds import subjects
from proxy.console.api.accounts import AccountsApi
from proxy.console.api.audited_operations import AuditedOperations
from proxy.console.api.endpoints import HEADERS, Endpoint, add
from proxy.console.api.exchanges import ExchangesApi
from proxy.console.api.keys import KeysApi
from proxy.console.api.live import LiveApi, RunningSnapshot
from proxy.console.api.openapi import document
from proxy.console.api.sessions import Sessions
from proxy.console.api.status import StatusApi
from proxy.console.api.usage import UsageApi
from proxy.console.page_routes import add_page
from proxy.console.remote_exchanges import RemoteExchanges
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.exchange.running import ExchangeSnapshot
from proxy.http.errors import JSON_TYPE
from proxy.http.server import Routes, Server
from proxy.journal.frames import decode_opened
from proxy.keys.keyring import Keyring
from proxy.metering.estimator.estimate import Estimator
from proxy.reports.exchanges import ExchangeFilter, SettledExchange, read_exchange, read_exchanges
from proxy.reports.totals import read_paid
from proxy.reports.usage import UsageFilter as WantedSums
from proxy.reports.usage import UsageTotals, read_usage
from proxy.runtime.machine.command_store import CommandStore
from proxy.runtime.machine.probes import HEALTHZ, constant
from proxy.runtime.machine.queue import Queue
from proxy.runtime.proxy.peer_processes import PeerProcesses
from proxy.settings import Settings
from proxy.storage.executor import BoundedExecutor

# A few questions to the ledger at once and a few that wait: no dashboard takes it from those who settle.
THREADS = 2
WAITING_MAX = 32

LIVE, WHOSE = "live", "whose"
"""questions between the processes on one port: what runs there; which key an exchange is of"""


class ProcessExchanges(msgspec.Struct, frozen=True):
    """What one process runs."""

    node: str
    running: list[ExchangeSnapshot]


_MINE = msgspec.json.Decoder(ProcessExchanges)


class RunningExchanges:
    """What the processes on one port, and the board of leases, know of exchanges that the ledger does not have yet."""

    def __init__(
        self,
        chat: ProxyHandler,
        siblings: PeerProcesses | None,
        queue: Queue | None,
        *,
        node: str,
        estimator: Estimator,
    ) -> None:
        """`node`: this process, as the board names it."""
        self._chat = chat
        self._siblings = siblings
        self._queue = queue
        self._node = node
        self._others = None if queue is None else RemoteExchanges(queue.leases, estimator)

    def answer_to(self, question: str) -> bytes:
        """To a sibling; nothing if it is not for us to answer."""
        word, _, rest = question.partition(" ")
        if word == LIVE:
            return msgspec.json.encode(self._mine())
        return (self._chat.owners.key_of(rest) or "").encode() if word == WHOSE else b""

    async def running(self) -> RunningSnapshot:
        """See `console.live.Source`."""
        answers = [] if self._siblings is None else await self._siblings.ask(LIVE)
        here = [self._mine(), *map(_MINE.decode, answers)]
        running = [exchange for one in here for exchange in one.running]
        if self._others is None:
            return RunningSnapshot(running, len(here))
        found = await self._others.poll({one.node for one in here})
        return RunningSnapshot([*running, *found.running], len(here), found.nodes, found.coverage)

    async def key_of(self, exchange_id: str) -> str | None:
        """The key of one that runs here or elsewhere, or has just ended here; None: nobody knows it. Raises OSError."""
        mine = self._chat.owners.key_of(exchange_id)
        if mine is None and self._siblings is not None and exchange_id.isprintable():
            answers = await self._siblings.ask(f"{WHOSE} {exchange_id}")
            mine = answers[0].decode() if answers else None
        if mine is None and self._queue is not None:
            opened = await self._queue.leases.opened(exchange_id)
            mine = None if opened is None else decode_opened(opened).key_id
        return mine

    def _mine(self) -> ProcessExchanges:
        return ProcessExchanges(self._node, [exchange.running() for exchange in self._chat.live])


class LedgerReports:
    """The ledger's reports, as the console asks for them."""

    def __init__(self, engine: Engine, threads: BoundedExecutor, inside: RunningExchanges) -> None:
        self._engine = engine
        self._threads = threads
        self.key_of_unsettled = inside.key_of

    async def one(self, exchange_id: str) -> SettledExchange | None:
        """See `console.exchanges.Exchanges`."""
        return await self._threads.run(read_exchange, self._engine, exchange_id)

    async def listed(
        self, wanted: ExchangeFilter, limit: int
    ) -> tuple[list[SettledExchange], tuple[float, str] | None]:
        """See `console.exchanges.Exchanges`."""
        return await self._threads.run(read_exchanges, self._engine, wanted, limit)

    async def usage(self, wanted: WantedSums, rows_max: int) -> tuple[list[UsageTotals], int]:
        """See `console.usage.Reader`."""
        return await self._threads.run(read_usage, self._engine, wanted, rows_max)


class Console:
    """`start` it after the keyring is filled, `close` it before the engine is disposed."""

    def __init__(
        self, settings: Settings, store: CommandStore, keyring: Keyring, budgets: BudgetStore, inside: RunningExchanges
    ) -> None:
        self._settings = settings
        self._store = store
        self._keyring = keyring
        self._budgets = budgets
        self._inside = inside
        self._threads = BoundedExecutor(THREADS, name="console", waiting_max=WAITING_MAX)
        self._server: Server | None = None
        self._exchanges = ExchangesApi(LedgerReports(store.engine, self._threads, inside))
        self.url: str | None = None
        """where it listens; None: it does not"""

    def add_public(self, routes: Routes) -> None:
        """What a client's own listener answers of it: an exchange, to the key that made it."""
        add(routes, self._exchanges.one_endpoint, Sessions(self._keyring, None))

    async def start(self, refused: Callable[[int, str | None], None]) -> None:
        """Listen, if there is a secret. Raises OSError."""
        admin = self._settings.admin
        if admin.secret is None:
            return
        routes = Routes()
        sessions = Sessions(self._keyring, admin.secret)
        table = list(self._table(sessions))
        for endpoint in table:
            add(routes, endpoint, sessions)
        routes.local("GET", "/openapi.json", constant(msgspec.json.encode(document(table)), JSON_TYPE))
        routes.local("GET", "/healthz", HEALTHZ)
        add_page(routes)
        self._server = Server(routes, refused=refused, headers=HEADERS)
        port = await self._server.start(admin.host, admin.port)
        self.url = f"http://{f'[{admin.host}]' if ':' in admin.host else admin.host}:{port}"

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            await self._server.stop_listening()
            await self._server.close()
        await asyncio.to_thread(self._threads.close)

    def _table(self, sessions: Sessions) -> Iterable[Endpoint]:
        """Every route that wants to know who asks."""
        store = self._store
        reads = LedgerReports(store.engine, self._threads, self._inside)
        doing = AuditedOperations(store.acts, self._threads, self._keyring)
        paid = partial(read_paid, store.engine)
        keys = KeysApi(
            store.keys, store.accounts, doing, self._threads, pepper=store.pepper(),
            lifetime_max_s=self._settings.key_lifetime_max, unix_time=time.time, paid=paid,
        )  # fmt: skip
        accounts = AccountsApi(
            store.accounts, store.keys, store.ledger, doing, self._threads, unix_time=time.time, paid=paid
        )  # fmt: skip
        standing = StatusApi(
            self._threads,
            store.acts,
            counter_states=self._budgets.counter_states,
            subjects=partial(subjects, store.engine),
            paid=paid,
        )
        yield from UsageApi(reads.usage, unix_time=time.time).endpoints()
        yield from self._exchanges.endpoints()
        yield from LiveApi(self._inside.running, sessions, unix_time=time.time).endpoints()
        yield from standing.endpoints()
        yield from keys.endpoints()
        yield from accounts.endpoints()
