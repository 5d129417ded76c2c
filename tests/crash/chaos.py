"""Streams by the dozen, a kill at a random instant, three books to compare: the clients', the provider's, the ledger.

Law: nothing here believes the proxy. Every request has an upstream model name of its own, so that each book names it;
what a client got is counted by the reference reader of tests/support, what a provider saw is in the provider's log.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum, auto
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal
from urllib.request import urlopen

import aiohttp
from sqlalchemy import func, select

from proxy.demo.script import Shape
from proxy.ledger.schema.tables import dead_letters
from proxy.storage.database import open_engine, reading
from tests.support import sse
from tests.support.ledger_tables import read_balances
from tests.support.net import ask
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COST, PRICE, Listening, Tokenweir, provider_section
from tests.support.waiting import until

STREAMS = 50
# Beside the streams: answers that are no streams, and clients that leave, under both policies.
OTHERS: tuple[Kind, ...] = ("plain", "plain", "leaves", "leaves", "drains", "drains")
LANGUAGES: tuple[Literal["tera", "tensorloop", "siliconstorm", "electron", "openai"], ...] = (
    "tera", "tensorloop", "siliconstorm", "electron", "openai",
)  # fmt: skip
# How an exchange can end where only the proxy is struck.
ENDS = frozenset({"served", "client_left", "crashed", "shut_down"})
# How long anything may take that takes milliseconds on an idle machine.
PATIENCE_S = 20.0
_until = partial(until, within_s=PATIENCE_S, poll_s=0.001)

Kind = Literal["stream", "plain", "leaves", "drains"]
Entry = Mapping[str, Any]


class Instant(StrEnum):
    MIDWAY = auto()
    """while all streams flow"""
    ADMISSION = auto()
    """while all are being admitted"""
    END = auto()
    """while all come to their end"""
    RECOVERY = auto()
    """midway, and then again while the next process puts things in order"""


@dataclass(slots=True)
class Call:
    """One request as its client saw it."""

    name: str
    kind: Kind
    exchange_id: str | None = None
    """None: the client never saw a response head"""
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    """the body came to its proper end"""
    refusal: str = ""
    """the status and the body of an error"""
    pause_s: float = 0.0
    """the longest between the head, the pieces and the end of the body"""

    @property
    def events(self) -> int:
        """Whole events its client got."""
        return 0 if self.kind == "plain" else len(sse.events(bytes(self.body)))

    @property
    def told_all(self) -> bool:
        """The provider's last word was passed on: its usage came before that."""
        return self.kind != "plain" and sse.done(bytes(self.body))


def deployment(folder: Path, provider: ScriptedProvider, **settings: Any) -> Tokenweir:
    """A proxy whose every model name is passed on: `drain/…` by that policy, all else by `cancel`."""
    rates = {"price": PRICE, "cost": COST}
    return Tokenweir(
        folder,
        providers={
            "scripted": provider_section(provider.base_url),
            "draining": provider_section(provider.base_url, on_client_disconnect="drain"),
        },
        models={"*": {"provider": "scripted", **rates}, "drain/*": {"provider": "draining", **rates}},
        **settings,
    )


def shape(rng: Random, kind: Kind) -> Shape:
    """A stream outlives the kill, mostly; all else comes and goes."""
    tokens = rng.randint(20, 120) if kind == "stream" else rng.randint(2, 20)
    return Shape(
        rng.choice(LANGUAGES), tokens=tokens, pace_ms=rng.choice((10, 20, 40)), first_ms=rng.choice((0, 0, 30))
    )


async def converse(
    session: aiohttp.ClientSession, tokenweir_url: str, call: Call, rng: Random, key: str, **more: Any
) -> None:
    """Ask as its kind does, and write down what comes. `more`: of the body. Raises ClientError, ConnectionError."""
    asked = f"drain/{call.name}" if call.kind == "drains" else call.name
    usage = rng.choice((None, True)) if call.kind != "plain" else None
    leave_after = rng.randint(1, 8) if call.kind in ("leaves", "drains") else None
    body = ask(asked, stream=call.kind != "plain", usage=usage, **more)
    headers = {"Authorization": f"Bearer {key}"}
    async with session.post(f"{tokenweir_url}/v1/chat/completions", json=body, headers=headers) as answer:
        call.exchange_id = answer.headers.get("x-tokenweir-exchange")
        if answer.status != 200:
            call.refusal = f"{answer.status} {await answer.text()}"
            answer.raise_for_status()
        last = time.monotonic()
        async for piece in answer.content.iter_any():
            call.body += piece
            call.pause_s, last = max(call.pause_s, time.monotonic() - last), time.monotonic()
            if leave_after is not None and call.events >= leave_after:
                answer.close()
                return
        call.whole = True


def wrong_in(
    calls: Iterable[Call], seen: Mapping[str, Entry], entries: Iterable[Entry], *, ends: Collection[str] = ENDS
) -> list[str]:
    """What the three books of one round disagree on. `seen`: the provider's log by name; `ends`: the outcomes that
    there can be. Empty: nothing."""
    by_name = {call.name: call for call in calls}
    entries = list(entries)
    found = Counter(entry["upstream_model"] for entry in entries)
    wrong = [f"doubled: {name}, {count} entries" for name, count in found.items() if count > 1]
    wrong += [f"from nowhere: {name}" for name in found if name not in by_name]
    wrong += [f"lost: {name}, the provider saw it" for name in seen if name not in found]
    wrong += [
        f"lost: {c.name}, its client saw {c.exchange_id}"
        for c in by_name.values()
        if c.exchange_id and c.name not in found
    ]
    for entry in entries:
        if (call := by_name.get(entry["upstream_model"])) is not None:
            wrong += [
                f"{call.name} ({call.kind}, {entry['outcome']}): {what}"
                for what in _wrong_with(entry, call, seen.get(call.name), ends)
            ]
    return wrong


def _wrong_with(entry: Entry, call: Call, truth: Entry | None, ends: Collection[str]) -> Iterable[str]:
    if call.exchange_id is not None and call.exchange_id != entry["exchange_id"]:
        yield f"the client was told another id: {call.exchange_id}"
    if entry["events"] < call.events or entry["bytes"] < len(call.body):
        yield f"{call.events} events, {len(call.body)} bytes delivered; {entry['events']}, {entry['bytes']} recorded"
    if entry["outcome"] not in ends:
        yield "no such end was made"
    if truth is None:
        if Decimal(entry["charge_usd"]) or entry["usage_source"] != "none":
            yield f"charged {entry['charge_usd']} for what no provider saw"
        return
    reported = entry["usage_source"] == "reported"
    if reported and _counts(entry) != _counts(truth):
        yield f"reported {_counts(entry)}, truly {_counts(truth)}"
    if call.told_all and not reported:
        yield "its usage had been reported, and is not what is billed"
    delivered, recorded = (call.events, len(call.body)), (entry["events"], entry["bytes"])
    if call.whole and call.kind == "stream" and (entry["outcome"] != "served" or recorded != delivered):
        yield f"its client got all of it, {delivered} events and bytes; {recorded} recorded"
    if call.kind != "plain" and sse.text(bytes(call.body)) and not entry["completion_tokens"]:
        yield "text was delivered, and no token is billed"


def _counts(one: Entry) -> tuple[int, int]:
    return one["prompt_tokens"], one["completion_tokens"]


class Chaos:
    """One deployment that is killed and started again, round after round."""

    def __init__(
        self, tokenweir: Tokenweir, provider: ScriptedProvider, key: str, rng: Random, *, streams: int = STREAMS
    ) -> None:
        """`streams`: so many are live at the kill, beside OTHERS."""
        self.streams = streams
        self.exchanges = 0
        """entries checked so far"""
        self.kills_in_recovery = 0
        self.starts = 0
        self._tokenweir = tokenweir
        self._provider = provider
        self._key = key
        self._rng = rng
        self._names = 0
        self._calls: list[Call] = []
        self._before = len(tokenweir.read_ledger())
        self._logged = len(tokenweir.log.read_text())
        self._engine = open_engine(tokenweir.ledger_url)

    async def round(self, instant: Instant, *, gently: bool = False) -> list[str]:
        """Load, kill (or, `gently`, SIGTERM), start, compare. What is wrong."""
        self._calls = []
        self._provider.reset()
        await self._load_and_end(instant, gently=gently)
        if instant is Instant.RECOVERY:
            await self._kill_in_recovery()
        await asyncio.to_thread(self._tokenweir.start)
        return await self._compare({one["body"]["model"]: one for one in self._provider.log()})

    def close(self) -> None:
        self._engine.dispose()

    # -- load ----------------------------------------------------------------------------------------------------

    async def _load_and_end(self, instant: Instant, *, gently: bool) -> None:
        kinds: list[Kind] = ["stream"] * self.streams
        if instant is not Instant.END:
            kinds += OTHERS
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=3 * PATIENCE_S)
        plan = self._same_for_all() if instant is Instant.END else None
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as lanes,
        ):
            for kind in kinds:
                lanes.create_task(self._lane(session, kind, plan))
            await self._moment(instant)
            if gently:
                assert await asyncio.to_thread(self._tokenweir.stop) == 0
            else:
                self._tokenweir.kill()

    def _same_for_all(self) -> Shape:
        return Shape(self._rng.choice(LANGUAGES), tokens=self._rng.randint(10, 25), pace_ms=20)

    async def _lane(self, session: aiohttp.ClientSession, kind: Kind, plan: Shape | None) -> None:
        """One request after the other, until there is nobody to answer."""
        while True:
            self._names += 1
            call = Call(f"{kind}-{self._names}", kind)
            self._provider.script(call.name, plan or shape(self._rng, kind))
            self._calls.append(call)
            try:
                await converse(session, self._tokenweir.url, call, self._rng, self._key)
            except (aiohttp.ClientError, ConnectionError):
                return

    # -- kill ----------------------------------------------------------------------------------------------------

    async def _moment(self, instant: Instant) -> None:
        match instant:
            case Instant.ADMISSION:
                await asyncio.sleep(self._rng.uniform(0, 0.1))
            case Instant.END:
                ended = self._rng.randint(1, self.streams)
                await _until(lambda: sum(call.whole for call in self._calls) >= ended)
            case Instant.MIDWAY | Instant.RECOVERY:
                await _until(lambda: self._flowing() >= self.streams)
                await asyncio.sleep(self._rng.uniform(0, 0.6))

    def _flowing(self) -> int:
        """Streams that have delivered something, and not ended; or have been followed by others."""
        return sum(call.kind == "stream" and bool(call.body) for call in self._calls)

    async def _kill_in_recovery(self) -> None:
        """Start, wait until the journal is taken over, and kill at a random instant of what follows."""
        journal = self._tokenweir.folder / "data" / "journal" / "node.json"
        before = journal.stat().st_mtime_ns
        self.kills_in_recovery += 1
        self._tokenweir.launch()
        await _until(lambda: journal.stat().st_mtime_ns != before)
        await asyncio.sleep(self._rng.uniform(0, 0.4))
        self._tokenweir.kill()

    # -- compare -------------------------------------------------------------------------------------------------

    async def _compare(self, seen: Mapping[str, Entry]) -> list[str]:
        await asyncio.to_thread(settle, self._tokenweir)
        entries = self._tokenweir.read_ledger()
        wrong = wrong_in(self._calls, seen, entries[self._before :])
        terminal = [entry for entry in entries if entry["kind"] == "usage"]
        ids = {entry["exchange_id"] for entry in terminal}
        if len(ids) != len(terminal):
            wrong.append(f"doubled: {len(terminal)} terminal entries of {len(ids)} exchanges")
        self.exchanges += len(entries) - self._before
        self._before = len(entries)
        log = self._tokenweir.log.read_text()[self._logged :]
        wrong += [f"the log says {word}" for word in ("Traceback", "damaged", "dead letters") if word in log]
        return wrong + self._wrong_sums(entries)

    def _wrong_sums(self, entries: Iterable[Entry]) -> list[str]:
        """The balance is the sum of all entries, and nothing was put aside."""
        sums: Counter[str] = Counter()
        for entry in entries:
            for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                sums[name] += entry[name] or 0
            sums["charged_nusd"] += nano(entry["charge_usd"])
            sums["cost_nusd"] += nano(entry["cost_usd"])
            sums["entries"] += 1
        balances = read_balances(self._engine)
        with reading(self._engine) as connection:
            letters = connection.execute(select(func.count()).select_from(dead_letters)).scalar_one()
        wrong = [f"{letters} dead letters"] if letters else []
        for name, total in sums.items():
            if (booked := sum(getattr(balance, name) for balance in balances)) != total:
                wrong.append(f"balance of {name}: {booked}, its entries {total}")
        return wrong


def nano(usd: str | None) -> int:
    """A decimal string of USD → nano-USD."""
    return int(Decimal(usd or 0).scaleb(9))


def gauges(tokenweir: Tokenweir) -> dict[str, float]:
    """The metrics without labels."""
    found = re.findall(r"^(\w+) (\S+)$", exposition(tokenweir), re.MULTILINE)
    return {name: float(value) for name, value in found}


def exposition(listening: Listening) -> str:
    """What a proxy or a worker says of itself."""
    with urlopen(f"{listening.url}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def settle(tokenweir: Tokenweir, within_s: float = PATIENCE_S) -> None:
    """Wait until nothing runs and nothing is pending. Raises AssertionError."""
    deadline = time.monotonic() + within_s
    waiting = (
        "tokenweir_exchanges_in_flight",
        "tokenweir_journal_pending_records",
        "tokenweir_journal_unwritten_records",
    )
    while any((now := gauges(tokenweir))[name] for name in waiting):
        assert time.monotonic() < deadline, f"still pending: {[(name, now[name]) for name in waiting]}"
        time.sleep(0.02)
