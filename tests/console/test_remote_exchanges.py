"""What a console knows of other machines: what the board of leases says, within bounds, and how old it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.billing.record import BackgroundRun
from proxy.console import remote_exchanges
from proxy.console.remote_exchanges import RemoteExchanges
from proxy.delivery.leases import LeaseParts
from proxy.foundation.ids import exchange_id
from proxy.journal.frames import opened_payload
from proxy.journal.progress import ProgressTable
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import Evidence, Usage
from proxy.storage.redis_client import QueueUnavailable
from tests.ledger.entries import a_record
from tests.ledger.priced_entries import COST, PRICE
from tests.support.leases import LocalLeases

BEGAN = replace(a_record(7).opened, exchange_id=exchange_id(), price=PRICE, cost=COST)


def lease(number: int, progress: bytes = b"") -> tuple[str, LeaseParts]:
    opened = replace(a_record(number).opened, price=PRICE)
    return opened.exchange_id, LeaseParts(opened_payload(opened), progress)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> tuple[RemoteExchanges, LocalLeases]:
    """Looking anew at each look."""
    monkeypatch.setattr(remote_exchanges, "POLL_S", 0.0)
    board = LocalLeases()
    return RemoteExchanges(board, Estimator(), nobody), board


async def nobody(exchange_id: str) -> None:
    pytest.fail(f"no machine was to be asked for {exchange_id}")


async def test_a_lease_says_what_its_stream_has_come_to(
    others: tuple[RemoteExchanges, LocalLeases], tmp_path: Path
) -> None:
    asked, board = others
    table = ProgressTable.open(tmp_path / "progress", slots=4, unix_time=time.time)
    slot = table.claim(BEGAN.exchange_id)
    waiting = LeaseParts(opened_payload(BEGAN), table.raw(slot.index))
    await board.renew("far", "1.1", {BEGAN.exchange_id: waiting}, [])
    await board.renew("near", "1.1", dict([lease(1)]), [])
    found = await asked.poll({"near"})
    (one,) = found.running
    assert (found.nodes, found.coverage, one.node, one.state) == (1, "complete", "far", "waiting")
    assert (one.prompt_tokens, one.completion_tokens, one.usage_source) == (90, 0, "estimated")
    assert one.charge_nusd == 90 * 130
    slot.note(Evidence(text_events=40, chars_latin=800, blanks=130), None, 40)
    slot.deliver(40, 9_000)
    await board.renew("far", "1.2", {BEGAN.exchange_id: LeaseParts(None, table.raw(slot.index))}, [])
    (one,) = (await asked.poll({"near"})).running
    assert (one.state, one.events, one.bytes, one.usage_source) == ("streaming", 40, 9_000, "estimated")
    assert one.completion_tokens > 40
    assert one.charge_nusd == 90 * 130 + one.completion_tokens * 410
    slot.note(Evidence(text_events=40, chars_latin=800), Usage(95, None, 210), 40)
    await board.renew("far", "1.3", {BEGAN.exchange_id: LeaseParts(None, table.raw(slot.index))}, [])
    (one,) = (await asked.poll({"near"})).running
    assert (one.prompt_tokens, one.completion_tokens, one.usage_source) == (95, 210, "reported")
    table.close()


async def test_who_says_nothing_is_known_to_be_silent(
    others: tuple[RemoteExchanges, LocalLeases], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, board = others
    now = 100.0
    monkeypatch.setattr(remote_exchanges.time, "monotonic", lambda: now)
    for at, beat, age_s in ((100.0, "1.1", 0.0), (104.0, "1.1", 4.0), (109.0, "1.2", 0.0), (112.0, "1.2", 3.0)):
        now = at
        await board.renew("far", beat, dict([lease(1)]), [])
        assert [one.heartbeat_age_s for one in (await asked.poll(())).running] == [age_s]


async def test_too_many_are_counted_only_and_what_cannot_be_read_is_left_out(
    others: tuple[RemoteExchanges, LocalLeases], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, board = others
    monkeypatch.setattr(remote_exchanges, "READ_MAX", 12)
    await board.renew("busy", "1.1", dict(lease(number) for number in range(20, 33)), [])
    await board.renew("calm", "1.1", dict(lease(number) for number in range(12)), [])
    found = await asked.poll(())
    assert (found.nodes, found.coverage, {one.node for one in found.running}) == (2, "partial", {"calm"})
    await board.dismiss("busy", "1.1")
    assert (await asked.poll(())).coverage == "complete"
    await board.renew("calm", "1.2", dict([lease(1, b"of another layout")]), [lease(2)[0]])
    found = await asked.poll(())
    assert (len(found.running), found.coverage) == (10, "partial")


async def test_a_board_that_is_away_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(LocalLeases):
        asked = 0

        async def nodes(self) -> dict[str, str]:
            self.asked += 1
            raise QueueUnavailable("away")

    board = Away()
    others = RemoteExchanges(board, Estimator(), nobody)
    for _ in range(3):
        found = await others.poll(())
        assert (found.running, found.nodes, found.coverage) == ((), 0, "unknown")
    assert board.asked == 1


async def test_a_machine_is_asked_for_a_stream_alone() -> None:
    board, asked = LocalLeases(), list[str]()

    async def ask(exchange_id: str) -> None:
        asked.append(exchange_id)

    others = RemoteExchanges(board, Estimator(), ask)
    opened = [a_record(number).opened for number in range(3)]
    opened[1] = replace(opened[1], streamed=False)
    opened[2] = replace(opened[2], background=BackgroundRun("resp_1", "openai", "proj_default", 1e10))
    leases = {one.exchange_id: LeaseParts(opened_payload(one), b"") for one in opened}
    await board.renew("far", "1.1", {**leases, "other": LeaseParts(b"of another version", b"")}, [])
    results = [await others.stop(name) for name in (*leases, "other", "nobody")]
    assert results == ["requested", "not_stoppable", "not_stoppable", "requested", "not_running"]
    assert asked == [opened[0].exchange_id, "other"]
