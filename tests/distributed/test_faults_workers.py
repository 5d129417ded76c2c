"""kill -9 of a worker at every point between a message and its acknowledgement: each exchange is settled once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import IO

import pytest

from tests.distributed.apart import Apart
from tests.distributed.mortal import POISON, Phase
from tests.distributed.plant import RATE, SHORT_RATE, heal, plant
from tests.support.examples import SEED
from tests.support.tokenweir import Listening
from tests.support.valkey import Valkey

EACH = 100
PHASES: list[Phase] = [phase for phase in Phase if phase is not Phase.POISON]
# Of these, `make test` kills in two: before the ledger has the batch, and before the queue forgets it.
FEW = [Phase.BEFORE_COMMIT, Phase.MID_ACK]
# The dead are found sooner than in real life, but not so soon that a busy machine is taken for dead.
LEASE, RENEW_S = {"lease_s": 5.0}, 0.3
# Of a life; it takes half a second.
LIFE_S_MAX = 20.0
# A poisonous record has killed this many when it is laid aside.
VICTIMS, POISONED = 5, 4


def mortal(apart: Apart, phases: list[Phase], seed: str) -> Listening:
    """A worker with these lives, not started yet; with none, an ordinary worker."""
    worker = apart.unstarted_worker()
    worker.program = ("-m", "tests.distributed.mortal", ",".join(phases), seed)
    return worker


async def deaths_of(worker: Listening, lives: int) -> Counter[str]:
    """Let it live its lives; how often it died where."""
    out = worker.launch().stdout
    assert out is not None
    with closing(worker):
        async with asyncio.timeout(lives * LIFE_S_MAX):
            lines = await asyncio.to_thread(_lines, out)
    found = Counter(line.split()[1] for line in lines if line.startswith("died"))
    assert found.total() == lives, f"{lines[-3:]} {worker.log.read_text()[-2000:]}"
    return found


def _lines(out: IO[str]) -> list[str]:
    return out.readlines()


async def strike(
    apart: Apart, valkey: Valkey, ledger_url: str, folder: Path, each: int, kinds: list[Phase], rate: int
) -> tuple[list[str], str]:
    """Two workers that die again and again, in each phase `each` times, and one that lives. In each once: one dies."""
    began, rng = time.monotonic(), Random(SEED)
    phases = kinds * each
    rng.shuffle(phases)
    halves = (phases[::2], phases[1::2]) if each > 1 else (phases,)
    apart.worker()
    async with plant(
        folder, rng, redis_url=valkey.url, ledger_url=ledger_url, settling=False, renew_s=RENEW_S, rate=rate
    ) as made:
        both = [deaths_of(mortal(apart, half, f"{SEED} {number}"), len(half)) for number, half in enumerate(halves)]
        died = sum(await asyncio.gather(*both), Counter())
        wrong = await heal(made, redis_url=valkey.url) + made.wrong_in(ledger_url)
    assert set(died.values()) == {each}
    figures = (
        f"workers: {died.total()} kills in {len(died)} phases, {len(wrong)} violations"
        f" ({len(made.truths)} exchanges; {time.monotonic() - began:.0f} s)"
    )
    return wrong, figures


@pytest.mark.waits
@pytest.mark.parametrize(
    ("each", "kinds", "rate"),
    [
        pytest.param(1, FEW, SHORT_RATE, marks=pytest.mark.thorough, id="few"),
        pytest.param(EACH, PHASES, RATE, marks=pytest.mark.slow, id="hundreds"),
    ],
)
@pytest.mark.parametrize("apart", [LEASE], indirect=True, ids=["lease"])
async def test_kills_in_each_phase(
    apart: Apart, valkey: Valkey, ledger_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    each: int, kinds: list[Phase], rate: int,
) -> None:  # fmt: skip
    with capsys.disabled():
        wrong, figures = await strike(apart, valkey, ledger_url, tmp_path, each, kinds, rate)
        if each > 1:
            print(f"\nseed {SEED}\n{figures}")
    assert not wrong, f"seed {SEED}: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("apart", [LEASE], indirect=True, ids=["lease"])
async def test_a_record_that_kills_is_laid_aside_and_its_neighbours_are_not(
    apart: Apart, valkey: Valkey, ledger_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = [mortal(apart, [Phase.POISON] * VICTIMS * POISONED, f"{SEED} {number}") for number in range(2)]
    outs = [worker.launch().stdout for worker in workers]
    async with plant(
        tmp_path, Random(SEED), redis_url=valkey.url, ledger_url=ledger_url, settling=False, renew_s=RENEW_S
    ) as made:
        for _ in range(POISONED):
            await asyncio.sleep(1)
            made.begin(POISON)
        wrong = await heal(made, redis_url=valkey.url) + made.wrong_in(ledger_url)
    for worker in workers:
        worker.signal(signal.SIGTERM)
    died = sum(line.startswith("died") for out in outs if out is not None for line in out)
    for worker in workers:
        worker.close()
    with capsys.disabled():
        print(f"\nseed {SEED}\nworkers: {POISONED} records that kill, {died} kills, {len(wrong)} violations")
    assert not wrong, wrong
    assert POISONED < died <= POISONED * VICTIMS
