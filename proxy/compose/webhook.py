"""Tells somebody's server what was noticed. Law: signed, at least once, within a day; a server that does not answer, or
answers nonsense, costs nothing but tries. Words of errors hold no URL, and nothing that the server said.

    POST {id, type, created_at, scope_id, scope_kind, name, threshold, spent_usd, budget_usd, window_start, window_end}
    X-Tokenweir-Id         the alert's: the same at every try
    X-Tokenweir-Timestamp  Unix seconds of this try
    X-Tokenweir-Signature  v1=hex(HMAC-SHA256(secret, timestamp + "." + body))

Any 2xx means that it has arrived. Everything else is tried again, after 10 s at first, then up to an hour.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import msgspec
from sqlalchemy import Engine

from proxy import __version__
from proxy.billing.money import usd_text
from proxy.compose.budgets import InThread
from proxy.ledger.alerts import GIVE_UP_S, GIVEN_UP, Alert, Subject, claim, subjects, told, untold
from proxy.ledger.reports import iso_utc
from proxy.pipeline.outage import Listener, Outage
from proxy.secret import Secret

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
        timeout = aiohttp.ClientTimeout(total=self._answer_s)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
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
            why = await self._post(session, alert.alert_id, body_of(alert, subject), now)
        if why is None:
            await self._in_thread(told, self._engine, alert)
        else:
            state = await self._in_thread(untold, self._engine, alert, why, self._unix_time())
            self._observer.unsent(alert, why, given_up=state == GIVEN_UP)

    async def _post(self, session: aiohttp.ClientSession, alert_id: str, body: bytes, now: float) -> str | None:
        """None: it has arrived. Else why not."""
        timestamp = str(int(now))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"tokenweir/{__version__}",
            "X-Tokenweir-Id": alert_id,
            "X-Tokenweir-Timestamp": timestamp,
            "X-Tokenweir-Signature": signature(self._secret, timestamp, body),
        }
        try:
            async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                return None if 200 <= answer.status < 300 else f"HTTP {answer.status}"
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            return type(error).__name__


def signature(secret: Secret, timestamp: str, body: bytes) -> str:
    """What shows that a message is ours, and when it was sent."""
    signed = hmac.new(secret.reveal().encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={signed.hexdigest()}"


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
