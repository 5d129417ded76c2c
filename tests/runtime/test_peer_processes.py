"""Several processes answer as one: sums, and of ages the highest."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.billing.record import Outcome
from proxy.runtime.proxy.peer_processes import PeerProcesses, merged
from proxy.telemetry.metrics import Metrics

pytestmark = pytest.mark.io


def an_exposition(exchanges: int, *, age_s: float = 0, in_flight: int = 1) -> bytes:
    metrics = Metrics(["m"])
    metrics.gauges(
        in_flight=lambda: in_flight, websockets=lambda: 0, depth=lambda: 1, oldest_age_s=lambda: age_s,
        unwritten=lambda: 0,
    )  # fmt: skip
    metrics.exchanges.labels("tera", "m", Outcome.SERVED).inc(exchanges)
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


async def test_whoever_is_asked_answers_for_all(folder: Path) -> None:
    members = [PeerProcesses(folder, number, 3) for number in range(3)]
    servers = [
        await member.listen(lambda _asked, number=member.number: an_exposition(1 + number)) for member in members
    ]
    answers = [await member.exposition(an_exposition(1 + member.number)) for member in members]
    for answer in answers:
        assert samples(answer)["tokenweir_exchanges_in_flight", ()] == 3
        assert samples(answer)["tokenweir_processes", ()] == 3
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_who_does_not_answer_is_left_out(folder: Path) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()
        writer.close()
        await writer.wait_closed()

    deaf = await asyncio.start_unix_server(silent, folder / "1")
    me = PeerProcesses(folder, 0, 3)  # the third never listened
    answer = samples(await me.exposition(an_exposition(1)))
    assert asked.is_set()
    assert answer["tokenweir_processes", ()] == 1
    over.set()
    deaf.close()
    await deaf.wait_closed()
    await asyncio.sleep(0.05)
