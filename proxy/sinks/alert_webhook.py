"""Tells somebody's server what was noticed. Law: signed, at least once, within a day; a server that does not answer, or
answers nonsense, costs nothing but tries.

    POST {id, type, created_at, scope_id, scope_kind, name, threshold, spent_usd, budget_usd, window_start, window_end}

signed as posting.py says, with the alert's id.

Any 2xx means that it has arrived. Everything else is tried again, after 10 s at first, then up to an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import msgspec
from sqlalchemy import Engine

from proxy.billing.money import usd_text
from proxy.budgets.thresholds import GIVE_UP_S, GIVEN_UP, Alert, Subject, claim, subjects, told, untold
from proxy.foundation.outage import Listener, Outage
from proxy.foundation.secret import Secret
from proxy.reports.reports import iso_utc
from proxy.sinks.posting import open_session, post, signed
from proxy.storage.executor import InThread

TYPE = "budget.threshold"

# How often it is looked for alerts whose time has come, and how many go out at once.
LOOK_S = 2.0
AT_ONCE = 10
# Well below CLAIM_S, so that nobody else takes the alert meanwhile.
ANSWER_S = 10.0


class Observer(Listener, Protocol):
    """Who wants to know: metrics, and the log. Of outages of the ledger, too."""

    def unsent(self, alert: Alert, why: str, *, given_up: bool) -> None:
        """A try failed; there will be another, or not."""


class Webhook:
    """`run` it, any number of times at once."""

    def __init__(
        self,
        engine: Engine,
        *,
        url: str,
        secret: Secret,
        unix_time: Callable[[], float],
        observer: Observer,
        in_thread: InThread = asyncio.to_thread,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`secret`: what signatures are made with."""
        self._engine = engine
        self._url = url
        self._secret = secret
        self._unix_time = unix_time
        self._observer = observer
        self._outage = Outage(observer)
        self._in_thread = in_thread
        self._answer_s = answer_s

    async def run(self) -> None:
        """For ever. Ends by being cancelled: what was under way is sent again."""
        while True:
            try:
                sent = await self.send()
            except Exception as error:  # noqa: BLE001  the ledger is away, or a bug: there will be another look
                self._outage.began(error)
                sent = 0
            else:
                self._outage.over()
            if sent < AT_ONCE:
                await asyncio.sleep(LOOK_S)

    async def send(self) -> int:
        """Send those whose time has come, AT_ONCE at most; how many were tried. Raises LedgerUnavailable."""
        claimed = await self._in_thread(claim, self._engine, self._unix_time(), AT_ONCE)
        if not claimed:
            return 0
        known = await self._in_thread(subjects, self._engine, {one.scope_id for one in claimed})
        async with open_session(self._answer_s) as session:
            sending = (self._send(session, one, known.get(one.scope_id)) for one in claimed)
            results = await asyncio.gather(*sending, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return len(claimed)

    async def _send(self, session: aiohttp.ClientSession, alert: Alert, subject: Subject | None) -> None:
        now = self._unix_time()
        why: str | None = "nobody could be told within a day"
        if now < alert.created_at + GIVE_UP_S:
            body = body_of(alert, subject)
            answer = await post(session, self._url, body, signed(self._secret, alert.alert_id, body, now), unix_s=now)
            why = None if answer.arrived else answer.why
        if why is None:
            await self._in_thread(told, self._engine, alert)
        else:
            state = await self._in_thread(untold, self._engine, alert, why, self._unix_time())
            self._observer.unsent(alert, why, given_up=state == GIVEN_UP)


def body_of(alert: Alert, subject: Subject | None) -> bytes:
    """The same at every try, unless somebody renames the scope meanwhile."""
    end = None if subject is None else subject.window_end(alert.since)
    shown: dict[str, Any] = {
        "id": alert.alert_id,
        "type": TYPE,
        "created_at": iso_utc(alert.created_at),
        "scope_id": alert.scope_id,
        "scope_kind": None if subject is None else subject.kind,
        "name": None if subject is None else subject.name,
        "threshold": alert.threshold,
        "spent_usd": usd_text(alert.spent_usd),
        "budget_usd": usd_text(alert.budget_usd),
        "window_start": iso_utc(alert.since) if alert.since else None,
        "window_end": None if end is None else iso_utc(end),
    }
    return msgspec.json.encode(shown)
