"""kill -9 under 50 live streams: no exchange is lost, none doubled, nothing delivered is forgotten."""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.crash.chaos import Chaos, Instant
from tests.support.examples import SEED
from tests.support.tokenweir import Tokenweir

KILLS = 200
# Of `make test`, and of `make test-thorough`.
FEW_STREAMS, MORE_STREAMS = 8, 15


@pytest.mark.parametrize(
    ("chaos", "instants"),
    [(FEW_STREAMS, [Instant.RECOVERY]), pytest.param(MORE_STREAMS, list(Instant), marks=pytest.mark.thorough)],
    indirect=["chaos"],
    ids=["in mid-stream and in recovery", "at each instant"],
)
async def test_no_exchange_is_lost_or_doubled_by_a_kill(chaos: Chaos, instants: list[Instant]) -> None:
    for instant in instants:
        wrong = await chaos.round(instant)
        assert not wrong, f"seed {SEED}, {instant}: {wrong}"
    assert chaos.exchanges > chaos.streams


@pytest.mark.slow
async def test_two_hundred_kills(running: Tokenweir, chaos: Chaos, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    wrong: list[str] = []
    rng = Random(SEED)
    with capsys.disabled():
        print(f"\nseed {SEED}")
        for number in range(KILLS):
            instant = rng.choice(list(Instant))
            wrong += [f"round {number} ({instant}): {what}" for what in await chaos.round(instant)]
        wrong += running.unreconciled()
        lost = sum(": lost: " in what for what in wrong)
        doubled = sum(": doubled: " in what for what in wrong)
        print(
            f"{KILLS} kills under {chaos.streams} streams, {chaos.exchanges} exchanges, {lost} lost, "
            f"{doubled} doubled\n"
            f"({chaos.kills_in_recovery} more kills during recovery; {time.monotonic() - began:.0f} s)"
        )
    assert not wrong, wrong
