"""A fault at every await and every I/O call between admission and settlement, one at a time.

The points are found in the source (points.py); a recording run says which of them the scenario reaches; at each of
these the process is killed, the call fails, or stands still, in a run of its own, and then the books are compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.distributed.apart import ledger_url, queue_url
from tests.faults.points import PROXY_FILES, WORKER_FILES, Fault, points
from tests.faults.stage import Swept, apart, embedded, reached
from tests.support.provider import ScriptedProvider

__all__ = ["ledger_url", "queue_url"]

# Part of the points only, as i/n: for machines with more time than patience, and for running parts side by side.
PART, PARTS = (int(number) for number in os.environ.get("TOKENWEIR_SWEEP", "0/1").split("/"))


# What is not run on one machine.
APART = {
    "delivery/shipper.py", "delivery/leases.py", "delivery/redis_leases.py", "delivery/redis_queue.py",
    "budgets/redis/store.py",
}  # fmt: skip


# How many points `make test` strikes, spread over the path of an exchange; `make faults` strikes all of them.
FEW = 1


async def sweep(
    swept: Swept, *, few: int | None = None, files: Collection[str] | None = None
) -> tuple[int, int, list[str]]:
    """How many points were struck, by how many faults, and what was wrong after them. `few`: so many points only, each
    by one fault, in turn."""
    wrong = [f"with no fault: {what}" for what in await swept.round(None, None)]
    found = [point for point in reached(swept) if files is None or point.file in files]
    found = [point for number, point in enumerate(found) if number % PARTS == PART]
    strikes = [(point, fault) for point in found for fault in Fault]
    if few is not None:
        strikes = list(zip(found[len(found) // few // 2 :: len(found) // few], cycle(Fault), strict=False))[:few]
    for point, fault in strikes:
        wrong += [f"{fault} at {point}: {what}" for what in await swept.round(point, fault)]
    return len({point for point, _ in strikes}), len(strikes), wrong


@pytest.fixture
def one_machine(tmp_path: Path, provider: ScriptedProvider) -> Iterator[Swept]:
    swept = embedded(tmp_path, provider)
    yield swept
    swept.close()


@pytest.fixture(params=["proxy", "worker"])
def machines(
    request: pytest.FixtureRequest, tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str
) -> Iterator[Swept]:
    """A proxy and a worker, one of which is struck."""
    swept = apart(tmp_path, provider, ledger_url, queue_url, strike_worker=request.param == "worker")
    yield swept
    swept.close()


@pytest.mark.thorough
@pytest.mark.waits
async def test_a_point_of_one_machine(one_machine: Swept) -> None:
    points_struck, faults, wrong = await sweep(one_machine, few=FEW)
    wrong += await one_machine.unsettled_holds()
    assert not wrong, wrong
    assert (points_struck, faults) == (FEW, FEW)


@pytest.mark.slow
async def test_every_point_of_one_machine(one_machine: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    await _sweep_and_say("one machine", one_machine, PROXY_FILES + WORKER_FILES, None, capsys)


@pytest.mark.slow
async def test_every_further_point_of_several_machines(machines: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    if machines.worker is None:
        await _sweep_and_say("a proxy with a queue", machines, PROXY_FILES, APART, capsys)
    else:
        await _sweep_and_say("a worker", machines, WORKER_FILES, set(WORKER_FILES), capsys)


async def _sweep_and_say(
    what: str,
    swept: Swept,
    files: tuple[str, ...],
    struck: Collection[str] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    began = time.monotonic()
    points_struck, faults, wrong = await sweep(swept, files=struck)
    wrong += await swept.unsettled_holds()
    wrong += await swept.unreconciled()
    there = len([point for point in points(files) if struck is None or point.file in struck])
    with capsys.disabled():
        print(
            f"\nsweep, {what}: {points_struck} of {there} points reached, {faults} faults of {len(Fault)} kinds, "
            f"{len(wrong)} violations ({time.monotonic() - began:.0f} s)"
        )
    assert not wrong, wrong
