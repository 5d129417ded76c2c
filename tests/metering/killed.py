"""An exchange whose proxy is killed: what its meter reads, and what recovery knows of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from proxy.journal.progress import ProgressTable
from proxy.journal.recovery import metered_of
from proxy.metering.dialect import Dialect
from proxy.metering.metered import Metered
from tests.journal.records import exchange_id


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> ProgressTable:
    return ProgressTable.open(tmp_path_factory.mktemp("progress") / "p", 2, unix_time=lambda: 1e9)


def read_and_recovered(dialect: Dialect, events: Iterable[bytes], table: ProgressTable) -> tuple[Metered, Metered]:
    """What the meter reads of a stream, and what recovery knows of it after a kill."""
    slot = table.claim(exchange_id(1))
    meter = dialect.stream_meter(dialect.framings[0])
    for event in events:
        meter.feed(event)
        meter.fold()
    tally = meter.tally
    slot.deliver(tally.events, 900)
    slot.note(tally.evidence, tally.usage, tally.events, tally.running, tally.seen)
    progress = table.read(slot.index)
    slot.release()
    assert progress is not None
    return meter.close(), metered_of(progress)
