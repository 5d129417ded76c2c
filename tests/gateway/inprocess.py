"""A gateway in the process of the test, with a journal and no ledger; whatever it reaches for is recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope
from proxy.billing.money import Nusd
from proxy.billing.pricing.rules import NOBODY
from proxy.billing.record import Opened, UsageRecord
from proxy.billing.reservation import DenialReason, Denied, Reservation
from proxy.budgets.admission import Admission, OpenReservation
from proxy.foundation.outage import Outage, OutageLog
from proxy.gateway.authentication import Accepting
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.background.polling import Pace
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.exchange.opener import ExchangeOpener
from proxy.gateway.exchange.running import ExchangeOwners
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.outbox import Outbox
from proxy.gateway.ports import Ports, RequestLimits, Reserve
from proxy.gateway.responses.handler import ResponsesHandler
from proxy.gateway.resume.handler import ResumeHandler
from proxy.gateway.resume.others import Others
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route
from proxy.gateway.websocket.handler import WebSocketHandler
from proxy.http.cors import Cors
from proxy.http.server import Routes, Server
from proxy.journal.journal import Journal
from proxy.journal.progress import ProgressTable, Slot
from proxy.keys.access import KeyAccess, Refused
from proxy.keys.idempotency import Claims, IdempotencyRecord
from proxy.keys.keyring import Keyring
from proxy.keys.response_owners import ResponseOwners
from proxy.ledger.dimensions.values import DimensionValue
from proxy.ledger.run_caps import RunOfKey
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.held_text import TextCounter
from proxy.settings import ProviderSettings
from proxy.settings.dimensions import DimensionSettings
from proxy.telemetry.metrics import Metrics

KEY = ApiKey("k", "k", b"", "", models=None, created_at=0.0, expires_at=None, revoked_at=None, revision=1)


class Everybody(Keyring):
    """Lets everybody in."""

    def __init__(self) -> None: ...

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | Refused:
        return KEY

    def refused_key(self, presented: str | None) -> ApiKey | None:
        return None

    def access(self, key: ApiKey) -> KeyAccess:
        return KeyAccess(blocked=False, scopes=(), payer=NOBODY, cost_in_answers=False)


class OfToken(Everybody):
    """Whoever sends `Bearer NAME` has the key of that name."""

    def __init__(self, **keys: ApiKey) -> None:
        self._keys = keys

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | Refused:
        return self._keys.get(presented or "", Refused.UNKNOWN)


class Held(OpenReservation):
    """A reservation of nothing."""

    def __init__(self, exchange_id: str) -> None:
        self.reserved, self.levels, self.spends, self.on_short = Reservation(exchange_id, (), 0, 0), (), False, None
        self.closed = 0

    def grow(self, nusd: int) -> None: ...

    def close(self, nusd: int, tokens: int, *_: object) -> None:
        self.closed += 1


class Unlimited(Admission):
    """Nothing is limited, unless a test denies it."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.asked: list[tuple[int, int, Sequence[Scope]]] = []
        """nUSD, tokens, and the levels"""
        self.denies: DenialReason | None = None
        self.waits: asyncio.Event | None = None
        """an admission lasts until it is set"""

    async def admit(
        self, key: ApiKey, scopes: Sequence[Scope], exchange_id: str, *, nusd: int, tokens: int, **_: object
    ) -> Held | Denied:
        self.asked.append((nusd, tokens, scopes))
        if self.waits is not None:
            await self.waits.wait()
        if self.denies is not None:
            return Denied(self.denies, key.key_id, None, (), 0)
        self.held.append(Held(exchange_id))
        return self.held[-1]


class Unclaimed(Claims):
    """Nothing has a name."""

    def __init__(self) -> None:
        self.answer_bytes_max = 0

    async def claim(self, holder_id: str, token: str, digest: str, exchange_id: str) -> IdempotencyRecord | None:
        return None

    async def end(
        self, holder_id: str, token: str, exchange_id: str, *, billed: bool, answer: bytes | None
    ) -> None: ...


class NamedValues:
    """Every dimension value is known, by an id with its name."""

    def ids(self, wanted: Iterable[DimensionValue], may_create: Any) -> dict[DimensionValue, str]:
        return {one: f"v_{one.value}" for one in wanted}

    def caps(self, value_ids: Collection[str]) -> dict[RunOfKey, Nusd]:
        return {}

    def lower_cap(self, run: RunOfKey, cap_nusd: Nusd) -> Nusd:
        return cap_nusd


class OwnersInMemory:
    """See OwnerStore. `down`: it cannot be reached."""

    def __init__(self) -> None:
        self.owners: dict[str, bytes] = {}
        self.down = False

    async def remember(self, name: str, owner: bytes) -> None:
        self._reach().update({name: owner})

    async def recall(self, name: str) -> bytes | None:
        return self._reach().get(name)

    async def forget(self, name: str) -> None:
        self._reach().pop(name, None)

    def _reach(self) -> dict[str, bytes]:
        if self.down:
            raise OSError("unreachable")
        return self.owners


@dataclass
class Gateway:
    """Where it listens, and what came of its exchanges."""

    url: str
    handler: ProxyHandler
    sockets: WebSocketHandler
    provider: Provider
    outbox: Counting
    unlimited: Unlimited
    owners: ResponseOwners
    background: BackgroundExchanges


class Counting(Outbox):
    """Counts what an exchange is given and gives back. `holds`: an opened exchange is durable only when told."""

    def __init__(self, journal: Journal, table: ProgressTable, disk: ThreadPoolExecutor) -> None:
        super().__init__(journal, table, disk)
        self.records: list[UsageRecord] = []
        self.opened = 0
        self.holds = False
        self.durable: asyncio.Future[None] | None = None

    def begin(self, opened: Opened) -> asyncio.Future[None] | None:
        done = super().begin(opened)
        self.opened += 1
        if not self.holds:
            return done
        self.durable = asyncio.get_running_loop().create_future()
        return self.durable

    def finish(self, record: UsageRecord, slot: Slot) -> None:
        self.records.append(record)
        super().finish(record, slot)


@asynccontextmanager
async def gateway(
    folder: Path,
    base_url: str,
    *,
    cors: Cors | None = None,
    slots: int = 16,
    keys: Everybody | None = None,
    store: OwnersInMemory | None = None,
    counter: TextCounter | None = None,
    pace: Pace | None = None,
    tapes: Tapes | None = None,
    others: Sequence[str] = (),
    request_bytes_max: int = 1 << 20,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """`settings`: of its one provider, whose one model is `electron`; `slots`: most exchanges at once; `store`: of the
    owners of responses, which other gateways may share; `counter`: of its texts; `pace`: of asking for answers in the
    background; `tapes`: streams can be taken up again, from those of the proxies at the addresses `others`, too."""
    journal = Journal.open(folder / "journal", bytes_max=1 << 24)
    table = ProgressTable.open(folder / "progress.table", slots=slots, unix_time=time.time)
    disk, upstream, accepting = ThreadPoolExecutor(1), UpstreamClient(), Accepting()
    provider = Provider.of(ProviderSettings(name="scripted", base_url=base_url, **settings), write_stall_s=60)
    route = Route(provider, "electron", lambda *_: (None, None), counter=counter)
    outbox, unlimited = Counting(journal, table, disk), Unlimited()
    owners = ResponseOwners(store or OwnersInMemory(), Outage(OutageLog("owners")))
    ids = DimensionIds(NamedValues(), lambda _: None, new_values_max=0)
    dimensions = RequestDimensions(DimensionSettings(), ids, b"")
    ports = Ports(
        outbox, upstream, Estimator(), Metrics(), time.time, unlimited, Unclaimed(), owners, dimensions, tapes=tapes
    )
    running = ExchangeOwners()
    background = BackgroundExchanges(ports, running, pace)
    limits = RequestLimits(Reserve(4096, Nusd(1 << 40), 402), request_bytes_max, 64)
    models = Models({"electron": route}, lambda _name: None)
    opener = ExchangeOpener(keys=keys or Everybody(), models=models, ports=ports, limits=limits)
    uploads = Uploads(body_bytes_max=request_bytes_max)
    handler = ProxyHandler(
        keys=keys or Everybody(), opener=opener, ports=ports, uploads=uploads, limits=limits,
        accepting=accepting, background=background.take, owners=running,
    )  # fmt: skip
    sockets = WebSocketHandler(
        keys=keys or Everybody(), opener=opener, ports=ports, providers={"scripted": provider}, live=handler.live,
        owners=running, uploads=uploads, limits=limits, sessions_max=64,
        accepting=accepting,
    )  # fmt: skip
    routes = Routes()
    for dialect in (OPENAI_CHAT, *(one for one in DIALECTS if one.socket is not None)):
        routes.metered(dialect, handler.serve, sockets.serve)
    resuming = None
    if tapes is not None:
        asked = Others(upstream, [], lambda: others)
        resuming = ResumeHandler(keys=keys or Everybody(), tapes=tapes, others=asked, stall_s=5.0, accepting=accepting)
        resuming.add_to(routes)
    ResponsesHandler(
        keys=keys or Everybody(), owners=owners, providers={"scripted": provider}, client=upstream, accepting=accepting,
        background=background, unix_time=time.time, resuming=resuming,
    ).add_to(routes)  # fmt: skip
    server = Server(routes, refused=lambda _status, _code: None, cors=cors)
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        yield Gateway(url, handler, sockets, provider, outbox, unlimited, owners, background)
    finally:
        await server.stop_listening()
        await server.close()
        await background.suspend()
        await owners.aclose()
        await upstream.close()
        ids.close()
        journal.close()
        table.close()
        disk.shutdown()
