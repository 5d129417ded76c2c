"""Worlds by their seeds: in each, machines, workers, queue, board and ledger fail for minutes of virtual time, and in
the end the books are right. A seed that fails replays: TOKENWEIR_SIMULATION_SEED=… make faults
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.loop import run
from tests.simulation.world import Tally, World
from tests.support.long_runs import part_of

SEED = int(os.environ.get("TOKENWEIR_SIMULATION_SEED", "2026"))
EXCHANGES = part_of(1_000_000)
# Of one world: some ten minutes of its time.
WORLD_EXCHANGES = 20_000
RATE = 40.0
# Of all calls, those that fail, in one world and the next of the large ones.
SHARES = (0.0, 0.02, 0.1, 0.3)
# Files of the journals; what a kill leaves is in the page cache anyway.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def world(seed: int, *, exchanges: int, share: float = 0.05) -> Tally:
    with tempfile.TemporaryDirectory(prefix="tw-sim-", dir=FAST) as folder:
        return run(World(seed, Path(folder), share=share).live(exchanges=exchanges, rate=RATE))


@cache
def small_world(seed: int) -> Tally:
    return world(SEED + seed, exchanges=400)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_the_books_are_right_whatever_happens(seed: int) -> None:
    tally = small_world(seed)
    assert tally.wrong == [], f"seed {SEED + seed}"
    assert tally.kills
    assert tally.faults


def test_the_same_seed_is_the_same_world() -> None:
    assert world(SEED, exchanges=400) == small_world(0)


@pytest.mark.slow
def test_a_million_exchanges(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    sums: Counter[str] = Counter()
    wrong: list[str] = []
    with capsys.disabled():
        print(f"\nseed {SEED}")
        for number in range(EXCHANGES // WORLD_EXCHANGES):
            tally = world(SEED + number, exchanges=WORLD_EXCHANGES, share=SHARES[number % len(SHARES)])
            wrong += [f"seed {SEED + number}: {what}" for what in tally.wrong]
            for name in Tally.__slots__:
                if name != "wrong":
                    sums[name] += getattr(tally, name)
        words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sums.items())
        print(f"simulation: {words}; {len(wrong)} violations ({time.monotonic() - began:.0f} s)")
    assert not wrong, wrong[:20]
    assert sums["exchanges"] >= EXCHANGES
