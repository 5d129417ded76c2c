"""All that is pushed to other servers: entries to the sinks, budget alerts to a webhook. A reload changes it.

Invariants:
- A sink with unchanged settings is not touched. A changed one continues at its position: one task sends at a time.
- A delivery under way ends, with the settings that it began with, before others are sent with the new ones.
- Entries that a removed sink has not received, and alerts of a disabled webhook, wait in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

from sqlalchemy import Engine

from proxy.budgets import thresholds
from proxy.budgets.observers import WebhookObserver
from proxy.foundation.tasks import Part, Parts, Tasks
from proxy.settings import Settings
from proxy.settings.sinks import SinkSettings
from proxy.settings.spending import AlertSettings
from proxy.sinks import progress
from proxy.sinks.alert_webhook import Webhook
from proxy.sinks.sender import SinkObserver, SinkSender
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.sink_metrics import SinkMetrics

_OFF = AlertSettings()


class Deliveries:
    """`use` settings, then others."""

    def __init__(self, engine: Engine, metrics: Metrics, tasks: Tasks, in_thread: InThread) -> None:
        self._engine, self._metrics, self._in_thread = engine, metrics, in_thread
        self._parts = Parts(tasks)
        self._sinks: Mapping[str, SinkSettings] = {}
        self._alerts = _OFF

    def use(self, settings: Settings) -> None:
        """Send by these settings from now on."""
        before, self._sinks = self._sinks, settings.sinks
        for name in before.keys() - settings.sinks.keys():
            self._parts.put(_task_name(name), _Removed(self._metrics.sinks, name))
        for name, sink in settings.sinks.items():
            if sink != before.get(name):
                end_wait = partial(self._in_thread, progress.end_wait, self._engine, name)
                sender = self._sender(sink)
                self._parts.put(_task_name(name), _AtOnce(sender, end_wait) if name in before else sender)
        if settings.alerts != self._alerts:
            self._use_alerts(settings.alerts)

    def prepared(self, settings: Settings) -> Callable[[], None]:
        """Prepare the settings. Returns a function that applies them. New sinks receive all entries that are settled
        after this call. It blocks: call it in a thread."""
        for name in settings.sinks.keys() - self._sinks.keys():
            with suppress(OSError):  # then the sender does it
                progress.register(self._engine, name, settings.sinks[name].since)
        return partial(self.use, settings)

    def _sender(self, sink: SinkSettings) -> SinkSender:
        observer = SinkObserver(self._metrics.sinks, sink.name)
        return SinkSender(self._engine, sink, unix_time=time.time, observer=observer, in_thread=self._in_thread)

    def _use_alerts(self, alerts: AlertSettings) -> None:
        before, self._alerts = self._alerts, alerts
        if alerts.url is None or alerts.secret is None:
            self._parts.put("webhook", None)
            return
        webhook = Webhook(
            self._engine, url=alerts.url, secret=alerts.secret, unix_time=time.time,
            observer=WebhookObserver(self._metrics.budgets), in_thread=self._in_thread,
        )  # fmt: skip
        self._parts.put("webhook", webhook if before.url is None else _AtOnce(webhook, self._end_wait_of_alerts))

    async def _end_wait_of_alerts(self) -> None:
        await self._in_thread(thresholds.end_wait, self._engine, time.time())


def _task_name(sink: str) -> str:
    return f"sink-{sink}"


class _AtOnce:
    """A part whose first attempt is due at once, however often the earlier ones have failed."""

    def __init__(self, part: Part, end_wait: Callable[[], Awaitable[None]]) -> None:
        self._part, self._end_wait = part, end_wait

    async def run(self) -> None:
        with suppress(OSError):  # the ledger is unavailable: then it waits
            await self._end_wait()
        await self._part.run()

    def finish(self) -> None:
        self._part.finish()


class _Removed:
    """In place of the sender of a removed sink: its status is exported no longer."""

    def __init__(self, metrics: SinkMetrics, name: str) -> None:
        self._metrics, self._name = metrics, name

    async def run(self) -> None:
        self._metrics.forget(self._name)

    def finish(self) -> None:
        """No-op: `run` returns at once."""
