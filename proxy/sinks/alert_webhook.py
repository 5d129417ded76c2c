"""Sends budget alerts to a webhook.

Invariants:
- An alert is signed, and sent until a 2xx answer arrives (at least once), for GIVE_UP_S at most.
- A failing server affects only the delivery of alerts.

    POST {id, type, created_at, scope_id, scope_kind, name, threshold, spent_usd, budget_usd, window_start, window_end}
    POST {id, type, created_at, scope_id, scope_kind, name, left_usd, low_usd}      of a prepaid balance

signed as described in signing.py, with the alert's id. Retries start after 10 s and back off to one hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
from sqlalchemy import Engine

from proxy.billing.money import usd_text
from proxy.budgets.observers import WebhookObserver
from proxy.budgets.thresholds import (
    GIVE_UP_S,
    GIVEN_UP,
    LOW_BALANCE,
    Alert,
    Subject,
    claim,
    mark_failed,
    mark_sent,
    subjects,
)
from proxy.foundation.outage import Outage
from proxy.foundation.secret import Secret
from proxy.foundation.tasks import Steps
from proxy.foundation.times import iso_utc
from proxy.sinks.format import signed
from proxy.sinks.posting import open_session, post
from proxy.storage.executor import InThread

TYPE, LOW_TYPE = "budget.threshold", "balance.low"

# Poll interval for due alerts, and the number sent at once.
POLL_S = 2.0
AT_ONCE = 10
# Well below CLAIM_S, so that no other process claims the alert in the meantime.
ANSWER_S = 10.0


class Webhook:
    """Sends due alerts. `run` may run in any number of processes."""

    def __init__(
        self,
        engine: Engine,
        *,
        url: str,
        secret: Secret,
        unix_time: Callable[[], float],
        observer: WebhookObserver,
        in_thread: InThread = asyncio.to_thread,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`secret`: the HMAC key of the signatures."""
        self._engine = engine
        self._url = url
        self._secret = secret
        self._unix_time = unix_time
        self._observer = observer
        self._outage = Outage(observer)
        self._in_thread = in_thread
        self._answer_s = answer_s
        self._steps = Steps()

    async def run(self) -> None:
        """Runs until `finish`, or until cancelled; an alert under way is then sent again."""
        while not self._steps.finished:
            if await self._outage.attempt(self.send, 0) < AT_ONCE:
                await self._steps.pause(POLL_S)

    def finish(self) -> None:
        """Ends `run` after the alerts under way."""
        self._steps.finish()

    async def send(self) -> int:
        """Sends up to AT_ONCE due alerts; returns the number of attempts. Raises LedgerUnavailable."""
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
        why: str | None = "not delivered within a day"
        if now < alert.created_at + GIVE_UP_S:
            body = body_of(alert, subject)
            answer = await post(session, self._url, body, signed(self._secret, alert.alert_id, body, now), unix_s=now)
            why = None if answer.arrived else answer.why
        if why is None:
            await self._in_thread(mark_sent, self._engine, alert)
        else:
            state = await self._in_thread(mark_failed, self._engine, alert, why, self._unix_time())
            self._observer.unsent(alert, why, given_up=state == GIVEN_UP)


def body_of(alert: Alert, subject: Subject | None) -> bytes:
    """The JSON body; the same for every attempt, unless the scope is renamed in between."""
    is_low = alert.threshold == LOW_BALANCE
    common = {
        "id": alert.alert_id,
        "type": LOW_TYPE if is_low else TYPE,
        "created_at": iso_utc(alert.created_at),
        "scope_id": alert.scope_id,
        "scope_kind": None if subject is None else subject.kind,
        "name": None if subject is None else subject.name,
    }
    return msgspec.json.encode(common | (_of_balance(alert) if is_low else _of_budget(alert, subject)))


def _of_balance(alert: Alert) -> dict[str, Any]:
    return {"left_usd": usd_text(-alert.spent_nusd), "low_usd": usd_text(alert.budget_nusd)}


def _of_budget(alert: Alert, subject: Subject | None) -> dict[str, Any]:
    end = None if subject is None else subject.window_end(alert.since)
    return {
        "threshold": alert.threshold,
        "spent_usd": usd_text(alert.spent_nusd),
        "budget_usd": usd_text(alert.budget_nusd),
        "window_start": iso_utc(alert.since) if alert.since else None,
        "window_end": None if end is None else iso_utc(end),
    }
