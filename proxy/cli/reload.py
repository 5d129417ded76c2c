"""`tokenweir reload`: make the running proxy read its configuration file again.

Invariants: an invalid file is refused before any process is signalled. The result of each process is printed; the exit
code is 0 only if every process has reloaded.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import Failure, json_line, required_config_file, with_config
from proxy.cli.output import add_json
from proxy.foundation.names import counted
from proxy.foundation.users import operator

if TYPE_CHECKING:
    from proxy.runtime.machine.configuration_file import ConfigurationStatus
    from proxy.settings import Settings

# How long the command waits for the running proxy.
RELOAD_S = 30.0
# Between two looks at what the processes have written.
LOOK_S = 0.02


def add_commands(commands: Any) -> None:
    reload = with_config(
        commands,
        "reload",
        "make the running proxy read its configuration again: providers, models, prices, sinks; nothing is interrupted",
        _reload,
    )
    add_json(reload, "print one JSON object for each process")


def _reload(options: argparse.Namespace) -> int:
    from proxy.runtime.machine.configuration_file import ConfigurationFile, running_status
    from proxy.runtime.machine.configured_prices import request_reload

    given = required_config_file(options.config)
    settings, digest = ConfigurationFile(given).read()
    first = running_status(settings.data_dir)
    if first is None:
        raise Failure(f"no proxy runs with the data folder {settings.data_dir} (data_dir)")
    if first.file is None:
        raise Failure("the running proxy has its settings from the environment: restart it to apply a change")
    if Path(first.file).resolve() != given.resolve():
        raise Failure(f"the running proxy reads {first.file}, not {given}")
    before = [running_status(settings.data_dir, number) for number in range(first.processes)]
    with suppress(OSError):  # else the change is recorded as one of the proxy's user
        request_reload(settings.data_dir, operator())
    os.kill(first.pid, signal.SIGHUP)
    until = time.monotonic() + RELOAD_S
    results = [_result(settings, number, was, digest, until) for number, was in enumerate(before)]
    if options.json:
        for result in results:
            print(json_line(result))
    else:
        _print(results, settings)
    return 1 if any(result["error"] is not None for result in results) else 0


def _result(
    settings: Settings, number: int, was: ConfigurationStatus | None, digest: str, until: float
) -> dict[str, Any]:
    """The result of a process, in the fields of `--json`. `until`: by `time.monotonic`."""
    from proxy.runtime.machine.configuration_file import process_start, running_status

    while True:
        now = running_status(settings.data_dir, number)
        if now is not None and _has_reloaded(was, now, digest):
            need_restart = list(now.need_restart) if now.error is None else []
            shown = {"file": now.file, "digest": now.digest, "need_restart": need_restart}
            return {"process": number, "pid": now.process, **shown, "error": now.error}
        has_ended = was is not None and now is None and process_start(was.pid) != was.started
        if has_ended or time.monotonic() > until:
            shown = {"file": None, "digest": None, "need_restart": []}
            pid = None if now is None else now.process
            why = "the process has ended" if has_ended else f"no answer within {RELOAD_S:.0f} s: see the log"
            return {"process": number, "pid": pid, **shown, "error": why}
        time.sleep(LOOK_S)


def _has_reloaded(was: ConfigurationStatus | None, now: ConfigurationStatus, digest: str) -> bool:
    """Whether the process has read the file since `was`, or was started with that file since."""
    if was is None or was.process != now.process:
        return now.digest == digest or now.attempts > (0 if was is None else was.attempts)
    return now.attempts > was.attempts


def _print(results: list[dict[str, Any]], settings: Settings) -> None:
    """Print what each process has done, and failures on standard error."""
    for result in results:
        name = f"process {result['process']}: " if len(results) > 1 else ""
        if result["error"] is not None:
            print(f"tokenweir: {name}nothing has changed: {result['error']}", file=sys.stderr)
            if "environment variable" in result["error"]:  # this command has read the file with its own variables
                print("tokenweir: a process keeps the environment of its start: restart it", file=sys.stderr)
        else:
            counts = f"{counted(len(settings.providers), 'provider')}, {counted(len(settings.models), 'model')}"
            print(f"tokenweir: {name}reloaded {result['file']} ({counts})")
    for names in sorted({", ".join(result["need_restart"]) for result in results} - {""}):
        print(f"tokenweir: only a restart applies: {names}", file=sys.stderr)
