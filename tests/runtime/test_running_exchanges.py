"""What is known of an exchange before the ledger has it: here, by a sibling, on the board of leases."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.console.remote_exchanges import RemoteExchanges
from proxy.delivery.leases import LeaseParts
from proxy.gateway.exchange.running import REMEMBERED_MAX, ExchangeOwners
from proxy.journal.frames import opened_payload
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.proxy.peer_processes import PeerProcesses
from proxy.runtime.proxy.running_exchanges import RunningExchanges
from tests.ledger.entries import a_record
from tests.support.leases import LocalLeases

pytestmark = pytest.mark.io


async def nothing(_exchange_id: str) -> None:
    """No other machine is asked."""


def inside(
    siblings: PeerProcesses | None = None, board: LocalLeases | None = None
) -> tuple[RunningExchanges, ExchangeOwners]:
    whose = ExchangeOwners()
    chat = SimpleNamespace(owners=whose, live=())
    name = "only" if siblings is None else f"process-{siblings.number}"
    remote = None if board is None else RemoteExchanges(board, Estimator(), nothing)
    made = RunningExchanges(chat, SimpleNamespace(live=()), siblings, remote, name)  # type: ignore[arg-type]
    return made, whose


async def test_whoever_has_it_says_whose_it_is() -> None:
    with tempfile.TemporaryDirectory(prefix="tw-") as short:
        members = [PeerProcesses(Path(short), number, 2) for number in range(2)]
        board = LocalLeases()
        opened = a_record(7).opened
        await board.renew("elsewhere", "1.1", {opened.exchange_id: LeaseParts(opened_payload(opened), b"")}, [])
        asked, _ = inside(members[0], board)
        other, others = inside(members[1])
        others.began("ended-there", "key-2")
        others.ended("ended-there")
        server = await members[1].listen(other.answer_to)
        found = [await asked.key_of(name) for name in ("ended-there", opened.exchange_id, "nobody's", "x\nlive")]
        assert found == ["key-2", opened.key_id, None, None]
        await board.renew("process-1", "1.1", {opened.exchange_id: LeaseParts(opened_payload(opened), b"")}, [])
        seen = await asked.running()
        assert (seen.processes, seen.remote_nodes, seen.remote_coverage) == (2, 1, "complete")
        assert [(one.exchange_id, one.node) for one in seen.running] == [(opened.exchange_id, "elsewhere")]
        server.close()
        await server.wait_closed()


def test_what_runs_is_never_forgotten_and_of_what_ended_the_oldest() -> None:
    whose = ExchangeOwners()
    whose.began("runs", "key-1")
    for number in range(REMEMBERED_MAX + 1):
        whose.began(f"{number}", "key-2")
        whose.ended(f"{number}")
    assert [whose.key_of(name) for name in ("runs", "0", "1", "x")] == ["key-1", None, "key-2", None]


async def test_whoever_has_a_stream_stops_it() -> None:
    with tempfile.TemporaryDirectory(prefix="tw-") as short:
        members = [PeerProcesses(Path(short), number, 2) for number in range(2)]
        asked, _ = inside(members[0], LocalLeases())
        other, _ = inside(members[1])
        other.handler.live = [  # type: ignore[assignment]
            SimpleNamespace(exchange_id=name, stop_stream=lambda name=name: name == "stream")
            for name in ("stream", "whole")
        ]
        server = await members[1].listen(other.answer_to)
        results = [await asked.stop(name) for name in ("stream", "whole", "nobody's", "x\nlive")]
        assert results == ["stopped", "not_stoppable", "not_running", "not_running"]
        server.close()
        await server.wait_closed()
