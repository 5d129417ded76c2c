"""`tokenweir sinks …`: the progress of each sink, and the entries rejected by its server."""

from __future__ import annotations

import argparse
import time
from typing import Any

from proxy.cli.common import json_line, load_settings, store_of, with_commands, with_config
from proxy.cli.output import add_list_options, print_list
from proxy.foundation.names import UnknownNameError
from proxy.foundation.times import iso_utc


def add_commands(commands: Any) -> None:
    sinks = with_commands(commands, "sinks", "show and retry the sinks that push entries to other systems")
    status = with_config(sinks, "status", "print the progress and the rejected entries of each sink", _status)
    add_list_options(status)
    retry = with_config(
        sinks,
        "retry",
        "send rejected entries again, and end the wait after failures",
        _retry,
        action="sinks.retry",
        quiet="",
    )
    retry.add_argument("name", metavar="NAME")


def _status(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import SINKS

    settings = load_settings(options.config)
    with store_of(options) as store:
        shown = (
            {"sink": name, "kind": sink.kind, **_status_json(store.engine, name)}
            for name, sink in settings.sinks.items()
        )
        print_list(options, SINKS, shown)


def _status_json(engine: Any, name: str) -> dict[str, Any]:
    from proxy.sinks.progress import OPEN, dead_letters, sink_status

    status = sink_status(engine, name)
    if status is None:
        return {"state": "never_run"}
    sink = status.sink
    times = {"last_sent_at": sink.last_sent_at, "failing_since": sink.failing_since}
    return {
        "state": "failing" if sink.failures else "behind" if status.waiting else "up_to_date",
        "sent": sink.sent,
        "pending": status.waiting,
        "lag_s": round(status.lag_s(time.time()), 3),
        **{field: None if at is None else iso_utc(at) for field, at in times.items()},
        "failures": sink.failures,
        "last_error": sink.last_error,
        "rejected": [
            {"entry_id": dead_letter.entry_id, "settled_at": iso_utc(dead_letter.settled_at), "reason": dead_letter.why}
            for dead_letter in dead_letters(engine, name)
            if dead_letter.state == OPEN
        ],
    }  # fmt: skip


def _retry(options: argparse.Namespace) -> None:
    from proxy.sinks.progress import retry

    if options.name not in load_settings(options.config).sinks:
        raise UnknownNameError(f"sinks: there is no sink {options.name!r}")
    with store_of(options) as store:
        print(json_line({"sink": options.name, "retried": retry(store.engine, options.name)}))
