"""Several processes on one port, as one. Law: whichever of them is asked answers for all; one that does not answer
within a second is left out, and the count of those that did says so.

Each listens on a Unix socket of its own in a folder that the parent made: one line asks, all that follows answers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

# Scrapers wait ten seconds as a rule; a process that takes longer than this to answer has other troubles.
ANSWER_S_MAX = 1.0
# One exposition; a thousand models come to a few MB.
EXPOSITION_BYTES_MAX = 64 << 20
METRICS = "metrics"
"""the question for a process's own series"""

# Gauges of which the sum would say nothing: the highest counts.
_HIGHEST = ("_age_seconds", "_time_seconds", "_timestamp_seconds", "_info", "_dead_letters")


_Series = tuple[str, tuple[tuple[str, str], ...]]
"""its name, its labels"""


@dataclass(frozen=True, slots=True)
class PeerProcesses:
    """The processes on one port."""

    folder: Path
    mine: int
    count: int

    async def listen(self, answer_to: Callable[[str], bytes]) -> asyncio.Server:
        """Answer the others: their question → the answer. Raises OSError."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(ANSWER_S_MAX):
                    question = await reader.readline()
                writer.write(answer_to(question.decode().strip()))
                await writer.drain()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

        path = self._socket(self.mine)
        path.unlink(missing_ok=True)  # of the process whose place this one has taken
        return await asyncio.start_unix_server(answer, path)

    async def exposition(self, mine: bytes) -> bytes:
        """Everybody's series, added up."""
        return merged([mine, *await self.ask(METRICS)])

    async def ask(self, question: str) -> list[bytes]:
        """What the others say to it: of those that answer, and not with nothing."""
        asked = [self._asked(number, question) for number in range(self.count) if number != self.mine]
        return [answer for answer in await asyncio.gather(*asked) if answer]

    async def _asked(self, number: int, question: str) -> bytes:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_S_MAX):
                reader, writer = await asyncio.open_unix_connection(self._socket(number))
                writer.write(f"{question}\n".encode())
                try:
                    return await reader.read(EXPOSITION_BYTES_MAX) + await reader.read()
                finally:
                    writer.close()
                    await writer.wait_closed()
        return b""

    def _socket(self, number: int) -> Path:
        return self.folder / str(number)


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def merged(expositions: Iterable[bytes]) -> bytes:
    """Several expositions of the same series as one: sums, and of ages and versions the highest."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[_Series, float]] = defaultdict(dict)
    answered = 0
    for exposition in expositions:
        answered += 1
        for family in text_string_to_metric_families(exposition.decode()):
            families.setdefault(family.name, family)
            kept = values[family.name]
            for sample in family.samples:
                series = sample.name, tuple(sample.labels.items())
                add = max if sample.name.endswith(_HIGHEST) else float.__add__
                kept[series] = add(kept[series], sample.value) if series in kept else sample.value
    for name, family in families.items():
        family.samples = [Sample(series, dict(labels), value) for (series, labels), value in values[name].items()]
    count = Metric("tokenweir_processes", "Processes behind this port that answered.", "gauge")
    count.add_sample("tokenweir_processes", {}, answered)
    registry = CollectorRegistry()
    registry.register(_Once([count, *families.values()]))
    return generate_latest(registry)
