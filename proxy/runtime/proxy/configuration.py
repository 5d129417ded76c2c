"""The part of the configuration that a running proxy can change: providers, models and prices, and what follows them.

Invariants: a reload changes all of it or nothing. An exchange keeps the provider and the prices that it was admitted
with. A provider whose settings stay the same keeps its state: health, credentials, what it has refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from proxy.billing.pricing.book import PriceBook
from proxy.foundation.files import replace_text
from proxy.gateway.upstream.health import BreakerState
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models
from proxy.runtime.machine.configuration_file import (
    ConfigurationFile,
    ConfigurationStatus,
    not_reloaded,
    process_start,
    reloaded,
    running_status,
    status_file,
)
from proxy.runtime.proxy.model_table import model_table, needs_price_book, price_lookup
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import Settings, SettingsError, require_prices
from proxy.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)


Follower = Callable[[Settings, Mapping[str, Provider]], Callable[[], None]]
"""the new settings and providers → a function that applies them. Called in a thread"""


class _Prepared(NamedTuple):
    settings: Settings
    book: PriceBook
    providers: dict[str, Provider]
    models: Models
    need_restart: list[str]
    follow: list[Callable[[], None]]


class Configuration:
    """Shared by all that route and price requests: `providers` and `models` are changed in place."""

    def __init__(self, settings: Settings, book: PriceBook, metrics: Metrics, tokenizers: Tokenizers) -> None:
        """Raises SettingsError."""
        self.settings = settings
        """the settings that apply"""
        self.providers: dict[str, Provider] = {}
        """the providers by their names in the settings"""
        self.models = Models({}, lambda _name: None)
        self.digest = ""
        """the digest of the applied file; empty: there is no file"""
        self.followers: list[Follower] = []
        """the further parts that a reload changes"""
        self.book = book
        """the built-in price book that applies"""
        self._metrics = metrics
        self._tokenizers = tokenizers
        self.apply(self.prepared(settings, book))

    def prepared(self, settings: Settings, book: PriceBook) -> _Prepared:
        """Prepare a change for `apply`. May be called in a thread. Raises SettingsError: the settings cannot be
        used."""
        if needs_price_book(settings):
            book.load()
        require_prices(settings, price_lookup(book))
        self._tokenizers.read(settings.models.values())
        providers = {name: self._provider(name, settings) for name in settings.providers}
        models = model_table(settings, book, providers, self._tokenizers)
        applied = reloaded(self.settings, settings)
        follow = [follower(applied, providers) for follower in self.followers]
        return _Prepared(applied, book, providers, models, not_reloaded(self.settings, settings), follow)

    def apply(self, prepared: _Prepared) -> list[str]:
        """Serve new requests by the prepared change. Returns the names of settings that have changed, and only a
        restart applies."""
        self.settings = prepared.settings
        self.book = prepared.book
        for name in self.providers.keys() - prepared.providers.keys():
            self._metrics.providers.forget(name, list(BreakerState))
        self.providers.clear()
        self.providers.update(prepared.providers)
        for name, provider in self.providers.items():
            self._metrics.providers.watch(name, list(BreakerState), partial(_state, provider))
        self._metrics.use_models(self.settings.models)
        self.models.become(prepared.models)
        for call in prepared.follow:
            call()
        return prepared.need_restart

    def _provider(self, name: str, settings: Settings) -> Provider:
        known, wanted = self.providers.get(name), settings.providers[name]
        if known is not None and known.settings == wanted:
            return known
        return Provider.of(wanted, write_stall_s=self.settings.write_stall_s)


def _state(provider: Provider) -> BreakerState:
    return provider.health.state(time.monotonic())


class Reloader:
    """Reads the configuration file again, and applies it; the log, the metrics and a file report the result."""

    def __init__(
        self,
        configuration: Configuration,
        file: ConfigurationFile | None,
        metrics: Metrics,
        *,
        data_dir: Path,
        number: int = 0,
        processes: int = 1,
    ) -> None:
        """`file`: None: the settings come from the environment. `number`: of this process among so many `processes` on
        the port, whose parent takes SIGHUP for them."""
        self._configuration = configuration
        self._metrics = metrics
        self._file = file
        self._data_dir, self._number = data_dir, number
        self._in_order = asyncio.Lock()
        configuration.digest = "" if file is None else file.digest
        pid = os.getpid() if processes == 1 else os.getppid()
        earlier = running_status(data_dir, number)
        self.status = ConfigurationStatus(
            pid=pid,
            started=process_start(pid),
            started_at=time.time(),
            processes=processes,
            process=os.getpid(),
            file=None if file is None else str(file.path.absolute()),
            digest=configuration.digest,
            applied_at=time.time(),
            # A process that a supervisor starts again counts on: `tokenweir reload` waits for the next number.
            attempts=earlier.attempts if earlier is not None and earlier.pid == pid else 0,
        )
        metrics.configured(configuration.digest, failed=False)

    def started(self) -> None:
        """The proxy serves: handle the signal from now on."""
        self._noted()

    def refuse(self) -> None:
        """Answer a request to reload: the proxy stops."""
        if self._is_ours():
            why = "the process stops, and reloads nothing"
            self.status = msgspec.structs.replace(self.status, attempts=self.status.attempts + 1, error=why)
            self._noted()

    def _is_ours(self) -> bool:
        """Whether the status in the data folder may be written: it is not of the process that serves now."""
        written = running_status(self._data_dir, self._number)
        return written is None or written.pid == self.status.pid

    def close(self) -> None:
        """The proxy stops: ignore the signal from now on."""
        if self._is_ours():
            status_file(self._data_dir, self._number).unlink(missing_ok=True)

    async def run(self) -> None:
        """Reload once."""
        async with self._in_order:
            self._finish(await asyncio.to_thread(self._prepare))

    async def use_book(self, book: PriceBook) -> None:
        """Serve new requests at the prices of this book. Raises SettingsError: a configured model has none in it, and
        nothing has changed."""
        configuration = self._configuration
        async with self._in_order:
            prepared = await asyncio.to_thread(configuration.prepared, configuration.settings, book)
            configuration.apply(prepared)

    def _prepare(self) -> tuple[_Prepared, str] | str:
        """Read the file. Returns what to apply and its digest, or why it cannot be used."""
        if self._file is None:
            return "the settings come from the environment: restart to apply a change"
        try:
            settings, digest = self._file.read_again()
            return self._configuration.prepared(settings, self._configuration.book), digest
        except SettingsError as wrong:
            return str(wrong)

    def _finish(self, found: tuple[_Prepared, str] | str) -> None:
        attempts = self.status.attempts + 1
        if isinstance(found, str):
            _log.error("the configuration was not reloaded, and nothing has changed: %s", found)
            self.status = msgspec.structs.replace(self.status, attempts=attempts, error=found)
        else:
            prepared, digest = found
            need_restart = self._configuration.apply(prepared)
            self._configuration.digest = digest
            _log.info("the configuration was reloaded (%s)", digest)
            if need_restart:
                _log.warning("changed in the file, but only a restart applies it: %s", ", ".join(need_restart))
            self.status = msgspec.structs.replace(
                self.status, digest=digest, applied_at=time.time(), attempts=attempts, error=None,
                need_restart=need_restart,
            )  # fmt: skip
        self._noted()

    def _noted(self) -> None:
        status = self.status
        self._metrics.configured(status.digest, failed=status.error is not None)
        path = status_file(self._data_dir, self._number)
        try:
            replace_text(path, msgspec.json.encode(status).decode())
        except OSError as failure:
            _log.warning("%s cannot be written: %s", path, failure.strerror)
