"""The long-running commands `tokenweir serve`, `worker` and `demo`.

Invariants: the first SIGTERM or SIGINT stops gracefully; the second ends running streams at once, settled and with an
error event; the third ends the process without cleanup. SIGHUP makes a proxy reload its configuration; a worker,
and a proxy that is starting, log it. A line on standard output reports the listening address.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from proxy.cli.common import CONFIG_HELP, Failure, add_command, config_file, load_settings, with_config
from proxy.cli.values import PORT, Whole
from proxy.foundation.times import iso_utc

if TYPE_CHECKING:
    from proxy.runtime.machine.configuration_file import ConfigurationFile
    from proxy.runtime.proxy.handover import Succession
    from proxy.runtime.proxy.peer_processes import PeerProcesses
    from proxy.settings import Settings
    from proxy.settings.values import LogSettings

# A garbage collection per 700 objects (the default) costs a busy proxy 4 % of its time and finds almost no cycles.
GC_THRESHOLDS = (20_000, 20, 20)
# How long a thread that settles may keep the event loop waiting for the interpreter. With Python's 5 ms, one request in
# a hundred got its first byte 4 ms late during settlements; with this, 1 to 3 ms.
SWITCH_S = 0.000_5
# A larger number is a typing error.
WORKERS_MAX = 256

_log = logging.getLogger(__name__)


class _Service(Protocol):
    port: int
    reload: Callable[[], object] | None
    """applies a changed configuration; None: that takes a restart"""
    refuse_reload: Callable[[], object] | None
    """answers `tokenweir reload` while the process stops; None: it is not asked"""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def hurry(self) -> None: ...


def add_commands(commands: Any) -> None:
    demo = add_command(commands, "demo", "run scripted providers and a proxy on this machine, in under a minute", _demo)
    then = demo.add_mutually_exclusive_group()
    then.add_argument("--keep", action="store_true", help="keep serving afterwards, until Ctrl-C")
    then.add_argument(
        "--full",
        action="store_true",
        help="instead, serve a ledger with sixty days of use by two customers, with the console, until Ctrl-C",
    )

    serve = add_command(commands, "serve", "run the proxy: relay and meter requests", _serve)
    serve.add_argument("--config", type=Path, metavar="FILE", help=f"{CONFIG_HELP}; else the environment")
    serve.add_argument("--host", help="overrides listen.host")
    serve.add_argument("--port", type=PORT, help="overrides listen.port; 0: any free port")
    serve.add_argument(
        "--workers",
        type=Whole(1, WORKERS_MAX),
        default=1,
        metavar="N",
        help="number of processes that share the port (default 1)",
    )
    serve.add_argument(
        "--take-over",
        action="store_true",
        help="replace the proxy that runs with the same data folder, for an upgrade: no request is refused",
    )

    worker = with_config(
        commands, "worker", "settle records from the queue into the ledger; run any number of workers", _worker
    )
    for command in (serve, worker):
        command.add_argument("--log-format", choices=("text", "json"), help="overrides log.format")
    worker.add_argument("--host", help="overrides worker.host")
    worker.add_argument("--port", type=PORT, help="overrides worker.port; 0: any free port")


def serve_as_one(
    settings: Settings, file: ConfigurationFile | None, peers: PeerProcesses, succession: Succession, line: Connection
) -> None:
    """Serve as one of several processes on one port, until SIGTERM or until the parent closes `line`."""
    from proxy.runtime.proxy.handover import kept_from_programs, send_listeners
    from proxy.runtime.proxy.process import Proxy
    from proxy.settings.values import LogFormat
    from proxy.telemetry.log_lines import log_to_stderr

    os.setpgid(0, 0)  # Ctrl-C reaches only the parent, which signals each process once
    log_to_stderr(as_json=settings.log.format is LogFormat.JSON)
    _survive_hangups()
    try:
        proxy = Proxy(settings, peers, file, kept_from_programs(succession))

        def started(_port: int) -> None:
            _print_console(proxy.console_url)
            with socket.socket(fileno=os.dup(line.fileno())) as parent:
                send_listeners(parent, proxy.listeners())

        _run(_serve_until_stopped(proxy, started, line, proxy.told))
    except (Failure, OSError, ValueError) as refusal:
        print(f"tokenweir: {refusal}", file=sys.stderr)
        sys.exit(1)


def _demo(options: argparse.Namespace) -> int:
    from proxy.demo.tour import deployment_with_history, tour

    return asyncio.run(deployment_with_history() if options.full else tour(keep=options.keep))


def _serve(options: argparse.Namespace) -> int:
    _survive_hangups()
    settings, file = _settings_to_serve(options)
    settings = replace(settings, log=_with_format(settings.log, options))
    from proxy.runtime.proxy.handover import activated, take_over

    succession = take_over(settings) if options.take_over else activated(os.environ)

    def listens(port: int) -> None:
        _print_address(settings.listen.host)(port)
        if succession.predecessor is not None:
            print(f"tokenweir: process {succession.predecessor.pid} finishes its exchanges, and ends", flush=True)

    if options.workers > 1:
        from proxy.runtime.proxy.supervisor import Supervisor

        return Supervisor(settings, file, options.workers, serve_as_one, succession, started=listens).run()
    from proxy.journal.log import JournalInUse
    from proxy.runtime.proxy.process import Proxy

    proxy = Proxy(settings, file=file, succession=succession)

    def started(port: int) -> None:
        _print_console(proxy.console_url)
        listens(port)

    try:
        _run(_serve_until_stopped(proxy, started))
    except Failure as refusal:
        if isinstance(refusal.__cause__, JournalInUse):
            raise Failure(_in_use(settings.data_dir)) from None
        raise
    return 0


def _in_use(data_dir: Path) -> str:
    """Why a second proxy cannot use this data folder."""
    from proxy.runtime.machine.configuration_file import running_status

    running = running_status(data_dir)
    by = "another process" if running is None else f"process {running.pid}, since {iso_utc(running.started_at)[:19]}Z"
    return (
        f"data_dir: {data_dir} is used by {by}. To apply a changed configuration to it: `tokenweir reload`; to replace "
        "it: `serve --take-over`; for more processes on one port: `serve --workers N`; for a second proxy, set another "
        "data_dir"
    )


def _worker(options: argparse.Namespace) -> None:
    _survive_hangups()
    settings = load_settings(options.config)
    _with_format(settings.log, options)
    if settings.queue is None:
        raise Failure("queue: is local, so the proxy settles its records; a worker needs redis://…")
    settings = replace(settings, worker=_with_address(settings.worker, options))
    from proxy.runtime.worker import Worker

    _run(_serve_until_stopped(Worker(settings), _print_address(settings.worker.host)))


def _with_format(log: LogSettings, options: argparse.Namespace) -> LogSettings:
    """Log to standard error from now on, in the format of the settings, or of the command line."""
    from proxy.settings.values import LogFormat
    from proxy.telemetry.log_lines import log_to_stderr

    if options.log_format is not None:
        log = replace(log, format=LogFormat(options.log_format))
    log_to_stderr(as_json=log.format is LogFormat.JSON)
    return log


def _with_address(section: Any, options: argparse.Namespace) -> Any:
    """A section of the settings with `host` and `port`, which the command line overrides."""
    port = section.port if options.port is None else options.port
    return replace(section, host=options.host or section.host, port=port)


def _print_address(host: str) -> Callable[[int], None]:
    from proxy.foundation.addresses import hosts_of, shown_host

    def started(port: int) -> None:
        others = f", on {', '.join(hosts_of(host))}" if len(hosts_of(host)) > 1 else ""
        print(f"tokenweir: listening on http://{shown_host(host)}:{port}{others}", flush=True)

    return started


def _print_console(url: str | None) -> None:
    if url is not None:
        print(f"tokenweir: console at {url}", flush=True)


def _survive_hangups() -> None:
    """Log SIGHUP, which by default ends a process."""
    signal.signal(signal.SIGHUP, _log_hangup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))  # the supervisor starts its processes with it blocked


_hung_up = Event()
"""a SIGHUP has come before it could be handled"""


def _log_hangup(_number: int, _frame: FrameType | None) -> None:
    _hung_up.set()
    with suppress(RuntimeError):  # the signal arrived while another line was being written
        _log.warning("SIGHUP: only a proxy that has started reloads its configuration")


def _settings_to_serve(options: argparse.Namespace) -> tuple[Settings, ConfigurationFile | None]:
    """The settings with the overrides of the command line, and the file that has them; None: the environment has."""
    from proxy.runtime.machine.configuration_file import ConfigurationFile
    from proxy.settings import SettingsError

    path = config_file(options.config)
    if path is not None:
        whole = path.absolute()  # a reload must find the same folders
        file = ConfigurationFile(whole, options.host, options.port, options.log_format)
        try:
            settings, digest = file.read()
        except SettingsError as wrong:
            raise SettingsError(str(wrong).replace(str(whole), str(path))) from None
        print(f"tokenweir: settings from {whole}")
        return settings, file._replace(digest=digest)
    from proxy.settings import from_environment

    settings, taken = from_environment(os.environ)
    print("tokenweir: no configuration file; settings from the environment:")
    for line in taken:
        print(f"  {line}")
    return replace(settings, listen=_with_address(settings.listen, options)), None


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine, on uvloop if installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


def _on_stop(
    loop: asyncio.AbstractEventLoop,
    line: Connection | None,
    stop: Callable[[], object],
    told: Callable[[bytes], object] | None = None,
) -> None:
    """Call `stop` after SIGTERM or SIGINT, or when the other end of `line` is closed. `told`: called with each message
    from `line`; None: any message stops, too."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if line is None:
        return

    def heard() -> None:
        try:
            word = b"" if told is None else line.recv_bytes()
        except (EOFError, OSError):
            word = b""
        if told is not None and word:
            told(word)
        else:
            loop.remove_reader(line.fileno())
            stop()

    loop.add_reader(line.fileno(), heard)


def _refuse_reload(service: _Service) -> None:
    _log.info("SIGHUP: the process stops, and reloads nothing")
    if service.refuse_reload is not None:
        service.refuse_reload()


async def _serve_until_stopped(
    service: _Service,
    started: Callable[[int], None],
    line: Connection | None = None,
    told: Callable[[bytes], object] | None = None,
) -> None:
    """Run a service until a signal arrives or the other end of `line` is closed. `told`: called with each message of
    that end."""
    from proxy.journal.log import JournalUnavailable
    from proxy.journal.progress import ProgressBroken

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()
    assert starting is not None
    _on_stop(loop, line, starting.cancel)
    gc.set_threshold(*GC_THRESHOLDS)  # a start makes only objects that stay
    try:
        await service.start()
    except (JournalUnavailable, ProgressBroken) as refusal:
        raise Failure(str(refusal)) from refusal
    except asyncio.CancelledError:
        starting.uncancel()
        return
    _on_stop(loop, line, stop.set, told)
    if service.reload is not None:
        loop.add_signal_handler(signal.SIGHUP, service.reload)
        if _hung_up.is_set():
            service.reload()
    # These objects (the price book alone has some hundred thousand) live until the end: exclude them from collections.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    started(service.port)
    await stop.wait()

    def hurry() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # a third signal ends the process at once
            loop.remove_signal_handler(number)
        service.hurry()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hurry)
    if line is not None:
        loop.remove_reader(line.fileno())
    loop.add_signal_handler(signal.SIGHUP, _refuse_reload, service)
    print("tokenweir: stopping; draining running streams", flush=True)
    await service.stop()
