"""What runs until it is told to stop: `tokenweir serve`, `worker` and `demo`; and `migrate` before them.

Law: the first SIGTERM or SIGINT stops gracefully, a second one at once; standard output says when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from proxy.cli.common import Failure, load_settings, store_of, with_config
from proxy.settings import Settings, from_environment

if TYPE_CHECKING:
    from proxy.runtime.proxy.peer_processes import PeerProcesses

# Looking for cycles after every 700 objects, as by default, costs a busy proxy 4 % of its time and finds next to none.
GC_THRESHOLDS = (20_000, 20, 20)
# More processes than this on one machine is a typing error.
WORKERS_MAX = 256


class _Service(Protocol):
    port: int

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def add_commands(commands: Any) -> None:
    """Make them known."""
    demo = commands.add_parser("demo", help="see real streams relayed, metered and settled, in under a minute")
    demo.add_argument("--keep", action="store_true", help="go on serving afterwards, until Ctrl-C")
    demo.set_defaults(run=_demo)

    serve = commands.add_parser("serve", help="relay and meter")
    serve.add_argument("--config", type=Path, metavar="FILE", help="without it, providers come from the environment")
    serve.add_argument("--host", help="overrides listen.host")
    serve.add_argument("--port", type=int, help="overrides listen.port; 0: any free one")
    serve.add_argument("--workers", type=int, default=1, metavar="N", help="processes on this port (default 1)")
    serve.set_defaults(run=_serve)

    worker = with_config(commands, "worker", "settle what proxies put in the queue; any number of these")
    worker.add_argument("--host", help="overrides worker.host")
    worker.add_argument("--port", type=int, help="overrides worker.port; 0: any free one")
    worker.set_defaults(run=_worker)

    migrate = with_config(commands, "migrate", "make the ledger, or bring it to this version")
    migrate.set_defaults(run=_migrate)


def serve_as_one(settings: Settings, siblings: PeerProcesses, line: Connection) -> None:
    """One of several processes on one port. Ends on SIGTERM, or when the parent, at the other end, is gone."""
    from proxy.runtime.proxy.process import Proxy

    os.setpgid(0, 0)  # a Ctrl-C is for the parent: it tells each of us once
    _log_to_stderr()
    try:
        proxy = Proxy(settings, siblings)

        def started(port: int) -> None:
            _say_console(proxy.console_url)
            line.send(port)

        code = _run(_until_told(proxy, started, line))
    except (Failure, OSError, ValueError) as refusal:
        print(f"tokenweir: {refusal}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _demo(options: argparse.Namespace) -> int:
    from proxy.demo.tour import tour

    return asyncio.run(tour(keep=options.keep))


def _serve(options: argparse.Namespace) -> int:
    if not 1 <= options.workers <= WORKERS_MAX:
        raise Failure(f"--workers: must be 1 to {WORKERS_MAX}")
    _log_to_stderr()
    settings = _settings_to_serve(options.config)
    settings = replace(settings, listen=_where(settings.listen, options))
    if options.workers > 1:
        return _serve_as_many(settings, options.workers)
    from proxy.runtime.proxy.process import Proxy

    proxy = Proxy(settings)

    def started(port: int) -> None:
        _say_console(proxy.console_url)
        _says(settings.listen.host)(port)

    return _run(_until_told(proxy, started))


def _serve_as_many(settings: Settings, workers: int) -> int:
    from proxy.runtime.proxy.supervisor import Supervisor

    return Supervisor(settings, workers, serve_as_one, started=_says(settings.listen.host)).run()


def _worker(options: argparse.Namespace) -> int:
    _log_to_stderr()
    settings = load_settings(options.config)
    if settings.queue is None:
        raise Failure("queue: is local, so the proxy settles by itself; a worker needs redis://…")
    settings = replace(settings, worker=_where(settings.worker, options))
    from proxy.runtime.worker import Worker

    return _run(_until_told(Worker(settings), _says(settings.worker.host)))


def _migrate(options: argparse.Namespace) -> int:
    with store_of(options):
        print("tokenweir: the ledger is up to date")
    return 0


def _where(place: Any, options: argparse.Namespace) -> Any:
    """A `host` and `port` of the settings, as the command line has them."""
    if options.port is not None and not 0 <= options.port <= 65_535:
        raise Failure("--port: must be 0 to 65535")
    port = place.port if options.port is None else options.port
    return replace(place, host=options.host or place.host, port=port)


def _says(host: str) -> Callable[[int], None]:
    def say(port: int) -> None:
        print(f"tokenweir: listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    return say


def _say_console(url: str | None) -> None:
    if url is not None:
        print(f"tokenweir: console at {url}", flush=True)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _settings_to_serve(config: Path | None) -> Settings:
    if config is not None:
        return load_settings(config)
    settings, taken = from_environment(os.environ)
    print("tokenweir: no --config; from the environment:")
    for line in taken:
        print(f"  {line}")
    return settings


def _run(work: Any) -> int:
    """On uvloop where it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        code: int = runner.run(work)
    return code


async def _until_told(service: _Service, started: Callable[[int], None], line: Connection | None = None) -> int:
    """Run it until a signal comes, or `line` is closed at its other end."""
    from proxy.journal.log import JournalUnavailable
    from proxy.journal.progress import ProgressBroken

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if line is not None:
        loop.add_reader(line.fileno(), told.set)
    try:
        await service.start()
    except (JournalUnavailable, ProgressBroken) as refusal:
        raise Failure(str(refusal)) from refusal
    # What exists now (the price book alone is some hundred thousand objects) lives to the end: the collector need not
    # look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    started(service.port)
    await told.wait()
    for number in (signal.SIGTERM, signal.SIGINT):  # a second word ends it at once
        loop.remove_signal_handler(number)
    if line is not None:
        loop.remove_reader(line.fileno())
    print("tokenweir: stopping; what runs may finish", flush=True)
    await service.stop()
    return 0
