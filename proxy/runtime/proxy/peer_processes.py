"""Several processes on one port that answer as one.

Invariants: each process can answer for all. A peer that does not answer within a second is left out; the series
`tokenweir_processes` counts the peers that did. Counters of all processes together never fall: the last known series
are used for a peer that is late. For a process that ended, its last known counters are; the process that replaces it
begins with these.

Each process listens on a Unix socket in a folder that the parent process made. A request is one line; the answer
follows, up to the end of the connection. Each process keeps its last known series in a file beside its socket.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class PeerProcesses:
    """The processes on one port."""

    folder: Path
    number: int
    """the number of this process, from 0"""
    count: int
    folders: Sequence[int] = ()
    """the numbers of the processes' data folders, see `data_folders`"""
    _ended: bytes | None = field(default=None, init=False)
    """counters of the processes whose place this one has taken; None: not read yet"""

    @property
    def data_folders(self) -> Sequence[int]:
        """The number of the data folder of each process: its own, unless another proxy still used that at its start."""
        return self.folders or range(self.count)

    async def listen(self, answer_to: Callable[[str], Awaitable[bytes]]) -> asyncio.Server:
        """Answer the peers. `answer_to`: request → answer. Raises OSError."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(ANSWER_S_MAX):
                    request = await reader.readline()
                writer.write(await answer_to(request.decode().strip()))
                await writer.drain()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

        path = self._socket(self.number)
        self._take_over()
        path.unlink(missing_ok=True)  # of the process that this one replaces
        return await asyncio.start_unix_server(answer, path)

    def _take_over(self) -> None:
        """Take the place of the process before."""
        if self._ended is None:
            self._ended = counters_of(self._last_known(self.number))
            self._keep(self._ended)

    async def own(self, exposition: bytes) -> bytes:
        """The series of this process, with the counters of those whose place it has taken. They are its last known ones
        from now on: call it in the order of the expositions. `exposition`: the series of this process."""
        self._take_over()
        return await asyncio.to_thread(self._own, exposition)

    def _own(self, exposition: bytes) -> bytes:
        if self._ended:
            exposition = _text(_summed([exposition, self._ended]))
        self._keep(exposition)
        return exposition

    async def exposition(self, own: bytes) -> bytes:
        """The added series of all processes. `own`: what `own` returned."""
        answers = await self._ask_all(METRICS)
        answered = [own, *(answer for _, answer in answers if answer)]
        unheard = [(number, answer is None) for number, answer in answers if not answer]
        return await asyncio.to_thread(self._merged, answered, unheard)

    def _merged(self, answered: Sequence[bytes], unheard: Iterable[tuple[int, bool]]) -> bytes:
        """`unheard`: the numbers of the other peers, and whether they have ended."""
        known = [(self._last_known(number), has_ended) for number, has_ended in unheard]
        return merged(answered, [counters_of(series) if has_ended else series for series, has_ended in known])

    async def ask(self, request: str) -> list[bytes]:
        """The answers of the peers, without peers that fail, are late or have an empty answer."""
        return [answer for _, answer in await self._ask_all(request) if answer]

    async def _ask_all(self, request: str) -> list[tuple[int, bytes | None]]:
        peers = [number for number in range(self.count) if number != self.number]
        return list(zip(peers, await asyncio.gather(*(self._ask(number, request) for number in peers)), strict=True))

    async def _ask(self, number: int, request: str) -> bytes | None:
        """The answer; empty if the peer fails or is late. None: it has ended."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                reader, writer = await asyncio.open_unix_connection(self._socket(number))
                writer.write(f"{request}\n".encode())
                try:
                    return await reader.read(EXPOSITION_BYTES_MAX) + await reader.read()
                finally:
                    writer.close()
                    await writer.wait_closed()
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except (OSError, TimeoutError):
            return b""

    def _last_known(self, number: int) -> bytes:
        try:
            return self._series(number).read_bytes()
        except OSError:
            return b""

    def _keep(self, series: bytes) -> None:
        new = self._series(self.number).with_suffix(".new")
        with suppress(OSError):  # the disk is full: what was known before stays
            new.write_bytes(series)
            os.replace(new, self._series(self.number))

    def _series(self, number: int) -> Path:
        return self.folder / f"{number}.series"

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


def merged(answered: Sequence[bytes], known: Iterable[bytes] = ()) -> bytes:
    """Merge expositions: sums; for ages, times, versions and dead letters the highest value. `answered`: of processes
    that answered, which are counted; `known`: of others."""
    count = Metric("tokenweir_processes", "Processes behind this port that answered.", "gauge")
    count.add_sample("tokenweir_processes", {}, len(answered))
    return _text([count, *_summed([*answered, *known])])


def counters_of(exposition: bytes) -> bytes:
    """The series that only rise."""
    return _text(family for family in _summed([exposition]) if family.type in ("counter", "histogram"))


def _summed(expositions: Iterable[bytes]) -> Iterable[Metric]:
    families: dict[str, Metric] = {}
    values: dict[str, dict[_Series, float]] = defaultdict(dict)
    for exposition in expositions:
        for family in text_string_to_metric_families(exposition.decode()):
            families.setdefault(family.name, family)
            kept = values[family.name]
            for sample in family.samples:
                series = sample.name, tuple(sample.labels.items())
                add = max if sample.name.endswith(_HIGHEST) else float.__add__
                kept[series] = add(kept[series], sample.value) if series in kept else sample.value
    for name, family in families.items():
        family.samples = [Sample(series, dict(labels), value) for (series, labels), value in values[name].items()]
    return families.values()


def _text(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Once(list(families)))
    return generate_latest(registry)
