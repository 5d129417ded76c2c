"""Several processes answer as one: sums, and of ages the highest."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.billing.record import Outcome
from proxy.runtime.proxy import peer_processes
from proxy.runtime.proxy.peer_processes import PeerProcesses, merged
from proxy.telemetry.metrics import Metrics

pytestmark = pytest.mark.io


def an_exposition(exchanges: int, *, age_s: float = 0, in_flight: int = 1) -> bytes:
    metrics = Metrics(["m"])
    metrics.gauges(
        in_flight=lambda: in_flight, websockets=lambda: 0, depth=lambda: 1, oldest_age_s=lambda: age_s,
        unwritten=lambda: 0,
    )  # fmt: skip
    metrics.exchanges.of["tera", "m", Outcome.SERVED] = exchanges
    metrics.overhead.observe(0.0002)
    metrics.gaps.observe(0.03)
    return metrics.exposition()


def samples(exposition: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(exposition.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a socket's path has a hundred characters at most."""
    with tempfile.TemporaryDirectory(prefix="tw-") as short:
        yield Path(short)


def test_counts_add_up_and_of_ages_the_highest_counts() -> None:
    read = samples(merged([an_exposition(3, age_s=2.5, in_flight=4), an_exposition(5, age_s=9.0)]))
    labels = (("model", "m"), ("outcome", "served"), ("provider", "tera"))
    assert read["tokenweir_exchanges_total", labels] == 8
    assert read["tokenweir_exchanges_in_flight", ()] == 5
    assert read["tokenweir_journal_oldest_pending_age_seconds", ()] == 9.0
    assert read["tokenweir_relay_overhead_seconds_count", ()] == 2
    assert read["tokenweir_inter_event_seconds_bucket", (("le", "0.04"),)] == 2
    assert read["tokenweir_processes", ()] == 2


def test_one_exposition_is_itself() -> None:
    alone = an_exposition(1)
    assert samples(alone).items() <= samples(merged([alone])).items()


class Member:
    """One of the processes, with a number of exchanges."""

    def __init__(self, folder: Path, number: int, exchanges: int = 0) -> None:
        self.peers = PeerProcesses(folder, number, 3)
        self.exchanges = exchanges
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await self.peers.listen(self._answer)

    async def _answer(self, _request: str) -> bytes:
        return await self._own()

    async def _own(self) -> bytes:
        return await self.peers.own(an_exposition(self.exchanges))

    async def scraped(self) -> dict[str, float]:
        """Exchanges that have ended, and that run; processes that answered."""
        read = samples(await self.peers.exposition(await self._own()))
        labels = (("model", "m"), ("outcome", "served"), ("provider", "tera"))
        ended, run = read["tokenweir_exchanges_total", labels], read["tokenweir_exchanges_in_flight", ()]
        return {"ended": ended, "run": run, "answered": read["tokenweir_processes", ()]}

    async def end(self) -> None:
        """As if it were killed: its socket stays."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def members(folder: Path) -> AsyncIterator[list[Member]]:
    made = [Member(folder, number, exchanges=10**number) for number in range(3)]
    for member in made:
        await member.start()
    yield made
    for member in made:
        await member.end()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of processes that do not answer in time."""
    busy, asking = set[int](), PeerProcesses._ask

    async def ask(peers: PeerProcesses, number: int, request: str) -> bytes | None:
        return b"" if number in busy else await asking(peers, number, request)

    monkeypatch.setattr(peer_processes, "ANSWER_S_MAX", 20.0)
    monkeypatch.setattr(PeerProcesses, "_ask", ask)
    return busy


async def test_whoever_is_asked_answers_for_all(members: list[Member]) -> None:
    for member in members:
        assert await member.scraped() == {"ended": 111, "run": 3, "answered": 3}


async def test_the_last_known_series_stand_for_a_process_that_is_busy(members: list[Member], busy: set[int]) -> None:
    """Whoever has asked it before."""
    assert (await members[0].scraped())["ended"] == 111
    busy.add(1)
    members[2].exchanges += 200
    assert await members[2].scraped() == {"ended": 311, "run": 3, "answered": 2}
    assert await members[0].scraped() == {"ended": 311, "run": 3, "answered": 2}
    members[1].exchanges += 5
    busy.clear()
    assert await members[0].scraped() == {"ended": 316, "run": 3, "answered": 3}


async def test_counters_do_not_fall_when_a_process_is_replaced(
    members: list[Member], folder: Path, busy: set[int]
) -> None:
    """What was last known of an ended one is counted once: before and after another has its place."""
    assert (await members[0].scraped())["ended"] == 111
    await members[1].end()
    assert await members[0].scraped() == {"ended": 111, "run": 2, "answered": 2}
    for _ in range(2):
        members[1] = Member(folder, 1)
        await members[1].start()
        busy.add(1)  # from its start
        assert await members[0].scraped() == {"ended": 111, "run": 2, "answered": 2}
        busy.clear()
        assert await members[2].scraped() == {"ended": 111, "run": 3, "answered": 3}
        await members[1].end()
        assert await members[2].scraped() == {"ended": 111, "run": 2, "answered": 2}
    members[1] = Member(folder, 1, exchanges=7)
    await members[1].start()
    assert await members[1].scraped() == {"ended": 118, "run": 3, "answered": 3}
    assert await members[0].scraped() == {"ended": 118, "run": 3, "answered": 3}


async def test_who_never_answered_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_processes, "ANSWER_S_MAX", 0.1)
    asked, over = asyncio.Event(), asyncio.Event()

    async def silent(_request: str) -> bytes:
        asked.set()
        await over.wait()
        return b""

    one = Member(folder, 0, exchanges=1)
    deaf = await PeerProcesses(folder, 1, 3).listen(silent)  # the third never listened
    assert await one.scraped() == {"ended": 1, "run": 1, "answered": 1}
    assert asked.is_set()
    over.set()
    deaf.close()
    await deaf.wait_closed()
    await asyncio.sleep(0.05)
