"""Two proxies and two workers, each on a machine of its own, the servers on another, and the clients on one more; and
customers of every kind who keep both proxies busy.

Invariants: nothing here believes the proxy: what an exchange truly used is in the provider's log, what was delivered is
what the clients read. No condition of the network is between clients, proxies and provider.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from urllib.request import urlopen

import aiohttp

from proxy.billing.adjustment import NUMBERS
from proxy.billing.entries import stored_name
from proxy.billing.limits import UNLIMITED, Limits
from proxy.billing.money import Nusd
from proxy.ledger.schema.migrate import migrate
from proxy.storage.database import open_engine
from tests.crash.chaos import Call, Kind, converse, deployment, nano, settle, shape, wrong_in
from tests.crash.stage import quick_key
from tests.distributed.books import wrong_books
from tests.support import sse
from tests.support.network import Machine, Network
from tests.support.postgres import PostgresServer, own_server
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COMMAND, Listening, Tokenweir
from tests.support.valkey import Valkey

PROXIES, WORKERS = ("proxy-1", "proxy-2"), ("worker-1", "worker-2")
SERVICES, CLIENTS = "services", "clients"
# Of every proxy and worker: each has an address of its own, and keeps it when it is started again.
PORT = 8080
# Short enough for a cut to outlast it: then who is cut off is taken for dead, and is not.
LEASE_S = 6.0
# Until everything has come to its end: the kernel tries again as late after a cut as the cut was long.
HEALING_S = 60.0
# For so long after a fault, who was struck by it may not know yet that it is over.
ECHO_S = 15.0
# A client that was refused, or met nobody, comes again.
AGAIN_S = 0.3
# Promise 7: streams that run do not notice. Their tokens are at most 40 ms apart, the shortest cut of the network lasts
# longer than this, and the worst pause on two cores under a load of 25 was 1.5 s.
PAUSE_S_MAX = 3.5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Customer:
    """A key, and who uses it at each proxy."""

    name: str
    kinds: tuple[Kind, ...]
    limits: Limits = UNLIMITED


FREE = Customer("free", ("stream", "stream", "stream", "plain", "leaves", "drains"))
AMPLE = Customer(
    "ample", ("stream", "stream", "plain", "leaves"), Limits(budget_nusd=Nusd(10**12), budget_window="none")
)
# It is spent before the end of a step. Each answer is as long as its request allows, and so costs what is held for it:
# whoever is granted what another one holds overspends.
SCARCE = Customer(
    "scarce", ("stream", "stream", "stream", "plain"), Limits(budget_nusd=Nusd(1_200_000), budget_window="none")
)
FEW = Customer("few", ("stream", "plain"), Limits(parallel=12))
CUSTOMERS = (FREE, AMPLE, SCARCE, FEW)


@dataclass(frozen=True, slots=True)
class Request:
    customer: Customer
    proxy: str
    call: Call
    tokens: int
    """most that it asks for; the provider generates as many"""
    began_s: float


@dataclass(slots=True)
class Traffic:
    """What the clients of one step have seen."""

    requests: list[Request] = field(default_factory=list)
    refused: list[tuple[float, Request]] = field(default_factory=list)
    """and when"""
    broken: list[str] = field(default_factory=list)
    """streams that ended too early, or stood still"""
    served: Counter[tuple[str, str]] = field(default_factory=Counter)
    """whole answers, by proxy and name of the customer"""

    async def until_served(self, customers: Collection[Customer] = CUSTOMERS) -> None:
        """Wait until each of these has got another answer at each proxy. Raises TimeoutError."""
        before = self.served.copy()
        wanted = [(proxy, customer.name) for proxy in PROXIES for customer in customers]
        try:
            async with asyncio.timeout(HEALING_S):
                while any(self.served[one] == before[one] for one in wanted):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            late = [one for one in wanted if self.served[one] == before[one]]
            last = [request.call.refusal for _, request in self.refused[-3:]]
            raise AssertionError(f"not served within {HEALING_S} s: {late}; the last refusals: {last}") from None

    def overspent(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Customers who spent more than their budget, and than single exchanges cost beyond what was held for them: a
        crashed one may, by its estimate; and one whose proxy was away for longer than its lease, by what it delivered
        after it was settled."""
        who = {request.call.name: request.customer for request in self.requests}
        spent: Counter[Customer] = Counter()
        beyond: Counter[Customer] = Counter()
        for entry in entries:
            if (customer := who.get(entry["upstream_model"])) is not None:
                charge = nano(entry["charge_usd"])
                spent[customer] += charge
                settled = charge - nano(entry.get("adjusted_usd"))
                beyond[customer] += max(0, charge - min(settled, nano(entry["details"].get("held_usd"))))
        for customer, nusd in spent.items():
            if (budget := customer.limits.budget_nusd) is not None and nusd > budget + beyond[customer]:
                yield f"overspent: {customer.name}, {nusd} nUSD of {budget}, {beyond[customer]} beyond what was held"

    def unpromised(self, blind: Mapping[str, tuple[float, float]]) -> Iterator[str]:
        """Refusals that nothing promises. `blind`: the proxies that could not ask Valkey, from when until when."""
        for at_s, request in self.refused:
            status = int(request.call.refusal.split()[0])
            since, until = blind.get(request.proxy, (0.0, 0.0))
            allowed = {402} if request.customer is SCARCE else set()
            if request.customer in (AMPLE, SCARCE) and since <= at_s <= until + ECHO_S:
                allowed.add(503)
            # What the proxies that are cut off hold is not known to be free.
            if request.customer is FEW and any(begin <= at_s <= end + ECHO_S for begin, end in blind.values()):
                allowed.add(429)
            if status not in allowed:
                yield f"refused: {request.customer.name} at {request.proxy}: {request.call.refusal}"


class Site:
    """All of it. The processes of proxies and workers may be stopped, killed and started again."""

    def __init__(
        self, folder: Path, network: Network, postgres: PostgresServer, valkey: Valkey, provider: ScriptedProvider
    ) -> None:
        self.network = network
        self.postgres = postgres
        self.valkey = valkey
        self.provider = provider
        self.ledger_url = postgres.url(postgres.new_database())
        migrate(self.ledger_url)
        self.proxies: dict[str, Tokenweir] = {name: self._made(folder, name) for name in PROXIES}
        self.processes: dict[str, Listening] = {
            **self.proxies,
            **{name: self._made(folder, name).worker() for name in WORKERS},
        }
        self.exchanges = 0
        """checked so far"""
        self.adjusted = 0
        """of these, by a better record that came later"""
        self.refused = 0
        """requests whose budget was not spent, so far"""
        self.spent = 0
        """budgets so far"""
        self.struck_s: dict[str, float] = defaultdict(float)
        """when a proxy was last killed or asleep, infinity while it is: its streams may notice"""
        self._numbers = 0
        self._rows = 0

    @property
    def services(self) -> Machine:
        """Where the servers run."""
        return self.network[SERVICES]

    def start(self, name: str) -> None:
        """Returns when it listens."""
        self.network[name].do(self.processes[name].start)

    def run(self, scenario: Coroutine[Any, Any, _T]) -> _T:
        """On the clients' machine."""
        return self.network[CLIENTS].do(lambda: asyncio.run(scenario))

    def close(self) -> None:
        for one in self.processes.values():
            if one.child is not None:
                one.kill()
        for proxy in self.proxies.values():
            proxy.close()

    def _made(self, folder: Path, name: str) -> Tokenweir:
        listen = {"host": self.network[name].address, "port": PORT}
        made = deployment(
            folder / name, self.provider, ledger_url=self.ledger_url, queue_url=self.valkey.url, lease_s=LEASE_S,
            shutdown_grace_s=2.0, listen=listen, worker=listen,
        )  # fmt: skip
        made.program = COMMAND  # its machine's thread must start it itself, for its network is inherited
        made.url = f"http://{listen['host']}:{PORT}"
        return made

    # -- traffic

    @asynccontextmanager
    async def traffic(self, rng: Random) -> AsyncIterator[Traffic]:
        """Within, every customer is busy at both proxies, with new keys; afterwards their requests have ended."""
        self.provider.reset()
        seen, going = Traffic(), asyncio.Event()
        going.set()
        first = self.proxies[PROXIES[0]]
        keys = {one: quick_key(first, one.limits, alias=f"{one.name}-{self._numbers}") for one in CUSTOMERS}
        timeout = aiohttp.ClientTimeout(total=2 * HEALING_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as lanes,
        ):

            async def lane(customer: Customer, kind: Kind, proxy: str) -> None:
                """One request after the other."""
                while going.is_set():
                    request = self._next(customer, kind, proxy, rng)
                    await self._make(session, request, keys[customer], rng, seen)

            for customer in CUSTOMERS:
                for kind in customer.kinds:
                    for proxy in PROXIES:
                        lanes.create_task(lane(customer, kind, proxy))
            try:
                yield seen
            finally:
                going.clear()

    def _next(self, customer: Customer, kind: Kind, proxy: str, rng: Random) -> Request:
        self._numbers += 1
        call = Call(f"{kind}-{self._numbers}", kind)
        plan = shape(rng, kind)
        self.provider.script(call.name, plan)
        return Request(customer, proxy, call, plan.tokens, time.monotonic())

    async def _make(
        self, session: aiohttp.ClientSession, request: Request, key: str, rng: Random, seen: Traffic
    ) -> None:
        call, proxy = request.call, request.proxy
        seen.requests.append(request)
        try:
            await converse(session, self.proxies[proxy].url, call, rng, key, max_tokens=request.tokens)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            if call.refusal:
                seen.refused.append((time.monotonic(), request))
            elif self.struck_s[proxy] < request.began_s:
                seen.broken.append(f"{call.name} at {proxy}: {error!r} after {len(call.body)} bytes")
            await asyncio.sleep(AGAIN_S)
            return
        seen.served[proxy, request.customer.name] += call.whole
        if self.struck_s[proxy] < request.began_s:
            if call.whole and call.kind == "stream" and not sse.done(bytes(call.body)):
                seen.broken.append(f"{call.name} at {proxy} has no end")
            if call.pause_s > PAUSE_S_MAX:
                seen.broken.append(f"{call.name} at {proxy} stood still for {call.pause_s:.1f} s")

    # -- what must hold

    async def ready(self) -> None:
        """Wait until every proxy and worker says that it is. Raises TimeoutError."""
        async with asyncio.timeout(HEALING_S):
            for one in self.processes.values():
                while not await asyncio.to_thread(_ready, one.url):
                    await asyncio.sleep(0.1)

    def wrong(self, seen: Traffic, *, ends: Collection[str]) -> list[str]:
        """What does not add up after the traffic has ended and all faults are over. `ends`: the outcomes that there
        can be. Empty: nothing."""
        wrong = list(seen.broken)
        for name, proxy in self.proxies.items():
            try:
                settle(proxy, HEALING_S)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
        rows = self.proxies["proxy-1"].read_ledger()
        entries = list(folded(rows[self._rows :]))
        self._rows = len(rows)
        self.exchanges += len(entries)
        self.adjusted += sum(entry["kind"] == "adjustment" for entry in entries)
        self.refused += sum(request.customer is AMPLE for _, request in seen.refused)
        self.spent += any(request.call.refusal.startswith("402") for _, request in seen.refused)
        truths = {one["body"]["model"]: one for one in self.provider.log()}
        wrong += wrong_in([request.call for request in seen.requests], truths, entries, ends=ends)
        wrong += seen.overspent(entries)
        engine = open_engine(self.ledger_url)
        try:
            return wrong + wrong_books(engine)
        finally:
            engine.dispose()


def _ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=AGAIN_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def folded(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One entry for each exchange: what its last record said, and the sums of all that was booked of it. More than one
    terminal entry of an exchange stay apart."""
    exchanges: dict[str, dict[str, Any]] = {}
    for row in rows:
        before = exchanges.get(row["exchange_id"])
        if before is None or row["kind"] == "usage":
            if before is not None:
                yield before
            exchanges[row["exchange_id"]] = dict(row)
        else:
            adjusted = {"charge_usd": before.get("adjusted_usd")}
            exchanges[row["exchange_id"]] = {
                **row,
                **{stored_name(name): _sum(before, row, stored_name(name)) for name in NUMBERS},
                "adjusted_usd": _sum(adjusted, row, "charge_usd"),
            }
    yield from exchanges.values()


def _sum(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> Any:
    if name.endswith("_usd"):
        return str(Decimal(one[name] or 0) + Decimal(other[name] or 0))
    return (one[name] or 0) + (other[name] or 0)


@contextmanager
def site(folder: Path, cluster: Path, *valkey_options: str) -> Iterator[Site]:
    """One that serves; skips the test where this machine cannot."""
    with (
        Network(SERVICES, CLIENTS, *PROXIES, *WORKERS) as network,
        network[CLIENTS].within(_serving(folder, cluster, network, valkey_options)) as made,
    ):
        yield made


@contextmanager
def _serving(folder: Path, cluster: Path, network: Network, valkey_options: Iterable[str]) -> Iterator[Site]:
    """On the clients' machine."""
    services = network[SERVICES]
    with ExitStack() as stack:
        postgres = stack.enter_context(services.within(own_server(cluster, host=services.address)))
        valkey = Valkey(folder / "valkey", "--protected-mode", "no", *valkey_options, host=services.address)
        stack.callback(valkey.close)
        services.do(valkey.start)
        provider = services.do(lambda: ScriptedProvider(host=services.address))
        stack.callback(provider.close)
        made = Site(folder, network, postgres, valkey, provider)
        stack.callback(made.close)
        for name in made.processes:
            made.start(name)
        yield made
