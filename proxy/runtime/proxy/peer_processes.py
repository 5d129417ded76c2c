"""Several processes on one port that answer as one.

Invariant: each process can answer for all. A peer that does not answer within a second is left out; the series
`tokenweir_processes` counts the peers that did.

Each process listens on a Unix socket in a folder that the parent process made. A request is one line; the answer
follows, up to the end of the connection.
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

# Scrapers wait for ten seconds as a rule.
ANSWER_S_MAX = 1.0
# One exposition; that of a thousand models has a few MB.
EXPOSITION_BYTES_MAX = 64 << 20
METRICS = "metrics"
"""the request for a process's own series"""

# Gauges whose sum would mean nothing: the highest value is taken.
_HIGHEST = ("_age_seconds", "_time_seconds", "_timestamp_seconds", "_info", "_dead_letters")


_Series = tuple[str, tuple[tuple[str, str], ...]]
"""name, labels"""


@dataclass(frozen=True, slots=True)
class PeerProcesses:
    """The processes on one port."""

    folder: Path
    number: int
    """the number of this process, from 0"""
    count: int

    async def listen(self, answer_to: Callable[[str], bytes]) -> asyncio.Server:
        """Answer the peers. `answer_to`: request → answer. Raises OSError."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(ANSWER_S_MAX):
                    request = await reader.readline()
                writer.write(answer_to(request.decode().strip()))
                await writer.drain()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

        path = self._socket(self.number)
        path.unlink(missing_ok=True)  # of the process that this one replaces
        return await asyncio.start_unix_server(answer, path)

    async def exposition(self, own: bytes) -> bytes:
        """The added series of all processes. `own`: the series of this process."""
        return merged([own, *await self.ask(METRICS)])

    async def ask(self, request: str) -> list[bytes]:
        """The answers of the peers, without peers that fail, are late or have an empty answer."""
        peers = [number for number in range(self.count) if number != self.number]
        answers = await asyncio.gather(*(self._ask(number, request) for number in peers))
        return [answer for answer in answers if answer]

    async def _ask(self, number: int, request: str) -> bytes:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_S_MAX):
                reader, writer = await asyncio.open_unix_connection(self._socket(number))
                writer.write(f"{request}\n".encode())
                try:
                    return await reader.read(EXPOSITION_BYTES_MAX) + await reader.read()
                finally:
                    writer.close()
                    await writer.wait_closed()
        return b""

    @property
    def http_socket(self) -> str:
        """The path of the socket on which this process answers its peers in HTTP."""
        return self._http_socket(self.number)

    @property
    def http_sockets(self) -> list[str]:
        """The paths of the peers' HTTP sockets."""
        return [self._http_socket(number) for number in range(self.count) if number != self.number]

    def _http_socket(self, number: int) -> str:
        return f"{self._socket(number)}.http"

    def _socket(self, number: int) -> Path:
        return self.folder / str(number)


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def merged(expositions: Iterable[bytes]) -> bytes:
    """Merge expositions: sums; for ages, times, versions and dead letters the highest value."""
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
