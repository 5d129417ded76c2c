"""Requests a stream from other processes of this machine and from proxies of other machines.

Invariants: a request carries the client's key, which the other proxy checks. A machine forwards it to its own processes
only, and these do not forward it. A slow proxy is waited for at most ASK_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.metering.dialect import KeyHeader
from proxy.settings import ProviderSettings, Timeouts

# The time limit for the head of another proxy's answer.
ASK_S = 2.0
ASKED_HEADER = "x-tokenweir-asked"
"""the header of a request by another proxy"""
MACHINE, PROCESS = "machine", "process"
"""its values: a request by another machine, which is forwarded to the processes here; by a process here"""
PATH = "/v1/exchanges/"
STREAM_PATH = "/stream"

# A resumed stream may take as long as any.
_TIMEOUTS = Timeouts(connect_s=ASK_S, first_byte_s=ASK_S, total_s=86_400.0)


def other_at(url: str) -> Provider:
    """The proxy at this address."""
    return Provider.of(ProviderSettings(name="another proxy", base_url=url, timeouts=_TIMEOUTS), write_stall_s=ASK_S)


def other_on(socket: str) -> Provider:
    """The process that listens on this Unix socket."""
    other = other_at("http://localhost")
    other.origin = other.origin._replace(socket=socket)
    return other


class FoundStream(NamedTuple):
    """The answer of a proxy that has the stream, or had it."""

    answer: Answer
    other: Provider


class Others:
    """The other processes and proxies."""

    def __init__(
        self, client: UpstreamClient, processes: Sequence[Provider], addresses: Callable[[], Iterable[str]]
    ) -> None:
        """`processes`: those of this machine. `addresses`: returns those of the proxies on other machines."""
        self._client = client
        self._processes = processes
        self._addresses = addresses

    async def find(self, exchange_id: str, query: str, key: str, *, asked: str | None) -> FoundStream | None:
        """An answer other than 404: a stream if possible, else an error. The caller closes it. `asked`: MACHINE or
        PROCESS if a proxy sent the request; None: a client."""
        path = f"{PATH}{exchange_id}{STREAM_PATH}?{query}"
        more = f"Authorization: Bearer {key}\r\n{ASKED_HEADER}: "
        found = None
        if asked in (None, MACHINE):
            found = await self._ask(self._processes, path, f"{more}{PROCESS}\r\n")
        if found is None and asked is None:
            machines = [other_at(address) for address in self._addresses()]
            found = await self._ask(machines, path, f"{more}{MACHINE}\r\n")
        return found

    async def _ask(self, others: Sequence[Provider], path: str, more: str) -> FoundStream | None:
        answers = [one for one in await asyncio.gather(*(self._one(each, path, more) for each in others)) if one]
        answers.sort(key=lambda one: one.answer.status)
        for late in answers[1:]:
            late.answer.close()
        return answers[0] if answers else None

    async def _one(self, other: Provider, path: str, more: str) -> FoundStream | None:
        try:
            async with asyncio.timeout(ASK_S):
                answer = await self._client.ask(other, other.get(path, KeyHeader.AUTHORIZATION, more))
        except (UpstreamFailedError, TimeoutError):
            return None
        if answer.status not in (200, 400, 410):
            answer.close()
            return None
        return FoundStream(answer, other)
