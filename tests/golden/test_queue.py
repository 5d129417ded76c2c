"""The stream and the leases of 0.1 in Redis: today's workers settle them, and today's proxies write the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from proxy.billing.record import UsageRecord
from proxy.billing.settlement import content_hash, entry
from proxy.delivery.leases import LeaseParts
from proxy.delivery.redis_leases import RedisLeases
from proxy.delivery.redis_queue import RedisQueue
from proxy.delivery.sweeper import Sweeper
from proxy.journal.frames import decode_opened
from proxy.journal.journal import Pending
from proxy.journal.progress import decoded
from proxy.ledger.schema.migrate import migrate
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.metering.usage import Evidence
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.storage.database import open_engine, sqlite_url
from tests.golden.reading import BEGAN, NODE, FourCharacters, dump, exchange_id, golden_entries, golden_json, shown
from tests.golden.reading import load_redis as load

STREAM = "{tokenweir:0}:records"
NODES = "tokenweir:nodes"
LEASES = f"tokenweir:{NODE}:leases"
SILENT = "00000000000000aa"


async def taken(queue: RedisQueue, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await queue.take(100)
    return found


async def test_the_stream_is_settled(plain: Any, client: Any, tmp_path: Path) -> None:
    await load(plain, "queue.json")
    assert await plain.keys() == [STREAM.encode()]
    queue = RedisQueue(client, consumer="worker-of-today", claim_after_ms=1, block_ms=10)
    seqs = [(1 << 40) + 13, *range((2 << 40) + 1, (2 << 40) + 13)]
    assert await queue.receipts() == [(NODE, seq) for seq in seqs]
    found = await taken(queue, 13)
    assert sorted((one.node, one.seq) for one in found) == [(NODE, seq) for seq in seqs]
    assert sorted(one.seq for one in found if one.deliveries == 2) == seqs[:2], "a dead worker of 0.1 held two"

    url = sqlite_url(tmp_path / "ledger.db")
    migrate(url)
    engine = open_engine(url)
    store = LedgerStore(engine, content_hash=content_hash, clock=lambda: BEGAN + 99)
    settled = store.settle([Arrival(entry(one.record), one.node, one.seq) for one in found])
    assert len(settled.inserted) == 13
    first = {exchange_id(number) for number in range(1, 14)}
    wanted = [one for one in golden_entries() if one["exchange_id"] in first and one["kind"] != "adjustment"]
    assert shown(EntryReader(engine, EntryFilter()).new_entries()) == wanted
    engine.dispose()

    await queue.settled(found)
    assert await plain.xlen(STREAM) == 0
    assert (await plain.xpending(STREAM, "settlers"))["pending"] == 0


async def test_the_stream_is_written_the_same(plain: Any, client: Any) -> None:
    await load(plain, "queue.json")
    golden = golden_json("redis/queue.json")[STREAM]["content"]["entries"]
    queue = RedisQueue(client, consumer="worker-of-today", claim_after_ms=1, block_ms=10)
    read = sorted(await taken(queue, 13), key=lambda one: one.seq)
    await plain.flushall()
    await queue.add([Pending(one.seq, msgspec.json.encode(one.record)) for one in read], NODE)
    await queue.take(1)
    found = (await dump(plain))[STREAM]
    assert [fields for _, fields in found["content"]["entries"]] == [fields for _, fields in golden]
    [group] = found["content"]["groups"]
    assert group["name"] == "settlers"


# -- leases


async def test_leases_are_read(plain: Any, client: Any) -> None:
    await load(plain, "leases.json")
    board = RedisLeases(client)
    assert await board.nodes() == {SILENT: "7.3", NODE: "2.2"}
    assert await board.counts([SILENT, NODE]) == {SILENT: 0, NODE: 3}
    assert await board.ids(NODE) == set(map(exchange_id, (40, 41, 42)))
    found = await board.of(NODE)
    assert {name: decode_opened(parts.opened or b"").exchange_id for name, parts in found.items()} == {
        exchange_id(number): exchange_id(number) for number in (40, 41, 42)
    }
    first, second = (decoded(found[exchange_id(number)].progress) for number in (40, 41))
    assert (first.events, first.bytes, first.noted_events, first.noted_at) == (12, 4_000, 10, BEGAN + 40)
    assert first.usage is not None
    assert (first.usage.total_tokens, first.usage.searches) == (2_900, 3)
    assert (second.events, second.evidence, second.usage) == (40, Evidence(text_events=20, chars_latin=400), None)
    assert found[exchange_id(42)].progress == b""
    opened = decode_opened(await board.opened(exchange_id(41)) or b"")
    assert [one.failed for one in opened.attempts] == ["connection refused", "HTTP 503", "HTTP 429"]


class Quiet:
    """An observer that fails for what must not be."""

    def checked(self, nodes: int) -> None:
        assert nodes in {0, 2}

    def swept(self, node: str, records: Sequence[UsageRecord]) -> None:
        pass

    def damaged(self, node: str, identity: str, why: str) -> None:
        raise AssertionError(why)

    def failed(self, error: Exception) -> None:
        raise error

    def healed(self, error: Exception) -> None:
        raise error


async def test_leases_are_swept(plain: Any, client: Any) -> None:
    """Two nodes are dead: what the one ran is settled, from what its leases said; then nothing is left of either."""
    await load(plain, "leases.json")
    settled: list[UsageRecord] = []

    async def settle(records: Sequence[UsageRecord]) -> None:
        settled.extend(records)

    now = 0.0
    sweeper = Sweeper(
        RedisLeases(client), settle, FourCharacters(), lease_s=10, monotonic=lambda: now, observer=Quiet()
    )  # fmt: skip
    for _ in range(6):
        await sweeper.check()
        now += 4
    usages = [one.reading.usage for one in settled]
    assert [
        (int(one.opened.exchange_id[-12:], 16), one.events, one.bytes, one.reading.source.value, one.bills.value)
        for one in settled
    ] == [
        (40, 12, 4_000, "reported", "prompt+output"),
        (41, 40, 12_000, "estimated", "prompt+output"),
        (42, 0, 0, "none", "nothing"),
    ]
    assert [(one.prompt_tokens, one.completion_tokens) for one in usages] == [(2_000, 900), (17, 200), (None, None)]
    assert [key.decode() for key in await plain.keys()] == [NODES]
    assert await plain.hkeys(NODES) == [b"@"]


async def test_leases_are_written_the_same(plain: Any, client: Any) -> None:
    await load(plain, "leases.json")
    golden = await dump(plain)
    assert golden == golden_json("redis/leases.json")
    assert sorted(golden) == sorted([NODES, LEASES, f"tokenweir:{SILENT}:leases"])
    board = RedisLeases(client)
    found = await board.of(NODE)
    await plain.flushall()
    parts = {
        name: LeaseParts(msgspec.json.encode(decode_opened(one.opened or b"")), one.progress)
        for name, one in found.items()
    }
    await board.renew(NODE, "2.1", parts | {exchange_id(43): LeaseParts(b"{}", b"")}, ())
    await board.renew(NODE, "2.2", {}, [exchange_id(43)])
    await board.renew(SILENT, "7.3", {}, ())
    await board.nodes()
    assert await dump(plain) == golden
