"""Asks providers for the usage of exchanges that have ended with an estimate, and has the answers settled.

Invariants: an exchange is asked about until it is settled, by any process, and last when it is END_S old; then it is
settled by what was reported, or without an answer. A report that may still change is requested again until then. If the
ledger has lost commits, it is read again, since adjustments may be among them. When to ask depends on its age alone, so
that a restart asks for nothing sooner. Each process asks for the exchanges that it has recorded, and OTHERS_S later for
those of other processes, which may have ended. A request has the operator's credential that the exchange was made with,
and does not change the health of the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from heapq import nsmallest
from typing import Final, NamedTuple
from urllib.parse import quote

from proxy.billing.later import is_answer
from proxy.foundation.outage import Outage, OutageLog
from proxy.gateway.background.polling import PollResult
from proxy.gateway.background.stored_answer import requested
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.ledger.settling.history import LedgerState, went_back
from proxy.ledger.settling.later import Question, Questions
from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects import DIALECTS
from proxy.metering.generation import generation_meter
from proxy.metering.metered import BodyMeter, Metered
from proxy.settings.providers import LaterUsage

# Between two looks at the ledger.
LOOK_S = 5.0
# Requests to one provider in one look: four a second.
ASKS_MAX = 20
# For an answer with all of its output. A provider that does not answer delays the next look.
ANSWER_S = 30.0
# The age of an exchange when it is asked about first; then at twice the age, each time. Providers know the usage of an
# answer within seconds to minutes; of one that they go on generating, when it has ended.
FIRST_S = 10.0
END_S = 86_400.0
# More than a process is down for an upgrade, or a crash loop.
OTHERS_S = 3_600.0
# Exchanges of a time when no process ran are asked about once, and settled.
LOOK_BACK_S = 2 * END_S
# Half a kilobyte each. More stay in the ledger until some of these are settled.
PENDING_MAX = 50_000

_BY_ENDPOINT: Final = {dialect.endpoint: dialect for dialect in DIALECTS}


class Way(NamedTuple):
    """How to ask about one exchange."""

    path: str
    """after the base URL"""
    key_header: KeyHeader
    meter: Callable[[], BodyMeter]


def way_of(question: Question) -> Way | None:
    """The request data of the question; None: another version wrote the question."""
    name, dialect = quote(question.response_id, safe=""), _BY_ENDPOINT.get(question.endpoint)
    if question.how == LaterUsage.GENERATION:
        return Way(f"/generation?id={name}", KeyHeader.AUTHORIZATION, generation_meter)
    if question.how == LaterUsage.STORED and dialect is not None:
        return Way(f"{dialect.upstream_path}/{name}", dialect.key_header, dialect.plain_meter)
    return None


def due_s(age_s: float) -> float:
    """The age at which an exchange of this age is asked about next: FIRST_S, twice that, … and last END_S."""
    due = FIRST_S
    while due <= age_s and due < END_S:
        due *= 2
    return min(due, END_S)


Read = Callable[[tuple[float, str]], Awaitable[Questions]]
"""the questions after a cursor. Raises LedgerUnavailable"""
Settle = Callable[[Question, Metered | None, bool], Awaitable[bool]]
"""(question, answer or None, whether it is the last one) → whether the exchange is settled: not by an answer that may
change and is not the last. Raises LedgerUnavailable"""


class LaterUsageAsker:
    """Call `run` as long as the process serves."""

    def __init__(
        self,
        *,
        read: Read,
        settle: Settle,
        providers: Mapping[str, Provider],
        client: UpstreamClient,
        node: str,
        unix_time: Callable[[], float],
    ) -> None:
        """`providers`: by name, as they are configured at the time. `node`: the name of this process."""
        self._read, self._settle = read, settle
        self._providers = providers
        self._client = client
        self._node = node
        self._unix_time = unix_time
        self._cursor = self._start()
        self._state: LedgerState | None = None  # when it was read last
        self._pending: dict[str, tuple[float, Question]] = {}  # by exchange id: when to ask
        self._outage = Outage(OutageLog("asking for usage afterwards"))

    def _start(self) -> tuple[float, str]:
        """The cursor of a process that has read nothing."""
        return self._unix_time() - LOOK_BACK_S, ""

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not any(one.later is not LaterUsage.OFF for one in self._providers.values()):
                continue
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  the ledger is away, or a bug: the next look tries again
                self._outage.began(error)
            else:
                self._outage.over()

    async def look(self) -> None:
        """Ask about the exchanges that are due. Raises the first exception of any of them, when all are asked."""
        await self._read_ledger()
        now = self._unix_time()
        due: dict[str, list[tuple[float, Question]]] = {}
        for at, question in self._pending.values():
            if at <= now:
                due.setdefault(question.provider, []).append((at, question))
        asked = [self._ask(one) for each in due.values() for _, one in nsmallest(ASKS_MAX, each)]
        for failure in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(failure, Exception):
                raise failure

    async def _read_ledger(self) -> None:
        more = True
        while more and len(self._pending) < PENDING_MAX:
            found = await self._read(self._cursor)
            for question in found.asked:
                if self._provider(question) is not None and way_of(question) is not None:
                    self._postpone(question)
            for exchange_id in found.settled:
                self._pending.pop(exchange_id, None)
            lost = self._state is not None and went_back(self._state, found.state)
            self._cursor, more = (self._start(), True) if lost else (found.cursor, found.more)
            self._state = found.state

    def _provider(self, question: Question) -> Provider | None:
        """The provider to ask; None: it must not be asked, or is no longer configured."""
        found = self._providers.get(question.provider)
        return None if found is None or found.later is LaterUsage.OFF else found

    def _postpone(self, question: Question, *, at_least_s: float = 0.0) -> None:
        """Schedule the next request of the question, in `at_least_s` seconds or later."""
        began, now = self._began(question), self._unix_time()
        self._pending[question.exchange_id] = max(began + due_s(now - began), now + at_least_s), question

    def _began(self, question: Question) -> float:
        """The time from which the age of an exchange counts in this process."""
        return question.settled_at + (0.0 if question.node == self._node else OTHERS_S)

    async def _ask(self, question: Question) -> None:
        """Ask about one exchange. Raises LedgerUnavailable: it stays due."""
        provider, way = self._provider(question), way_of(question)
        assert way is not None, "no other question is pending"
        if provider is None:  # the configuration has changed
            self._pending.pop(question.exchange_id, None)
            return
        is_last = self._unix_time() - self._began(question) >= END_S
        request = provider.bodiless("GET", way.path, way.key_header, credential=question.credential)
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await requested(self._client, provider, request, way.meter, self._unix_time())
        except TimeoutError:
            found = PollResult()
        answer = found.metered if found.metered is not None and is_answer(found.metered) else None
        if (answer is None and not is_last) or not await self._settle(question, answer, is_last):
            self._postpone(question, at_least_s=min(found.retry_after_s, OTHERS_S))
        else:
            self._pending.pop(question.exchange_id, None)
