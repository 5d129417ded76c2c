"""`tokenweir sinks …`: how far each sink is, and what its server refuses."""

from __future__ import annotations

import argparse
import time
from typing import Any

from proxy.cli.common import Failure, acts_as, json_line, load_settings, store_of, with_commands, with_config


def add_commands(commands: Any) -> None:
    """Make them known."""
    sinks = with_commands(commands, "sinks", "what pushes entries to others")
    status = with_config(sinks, "status", "how far each one is, and what its server refuses, as JSON lines")
    status.set_defaults(run=_status)
    retry = with_config(sinks, "retry", "send once more what was refused, and do not wait after failures")
    retry.add_argument("name", metavar="NAME")
    acts_as(retry, "sinks.retry", _retry)


def _status(options: argparse.Namespace) -> int:
    settings = load_settings(options.config)
    with store_of(options) as store:
        for name, sink in settings.sinks.items():
            print(json_line({"sink": name, "kind": sink.kind, **_stands(store.engine, name)}))
    return 0


def _stands(engine: Any, name: str) -> dict[str, Any]:
    from proxy.reports.reports import iso_utc
    from proxy.sinks.progress import OPEN, letters, sink_status

    found = sink_status(engine, name)
    if found is None:
        return {"state": "has not run yet"}
    sink = found.sink
    times = {"last_sent_at": sink.last_sent_at, "failing_since": sink.failing_since}
    return {
        "state": "fails" if sink.failures else "works" if not found.waiting else "is behind",
        "sent": sink.sent,
        "waiting": found.waiting,
        "lag_s": round(found.lag_s(time.time()), 3),
        **{field: None if at is None else iso_utc(at) for field, at in times.items()},
        "failures": sink.failures,
        "last_error": sink.last_error,
        "letters": [
            {"entry_id": one.entry_id, "settled_at": iso_utc(one.settled_at), "why": one.why}
            for one in letters(engine, name)
            if one.state == OPEN
        ],
    }  # fmt: skip


def _retry(options: argparse.Namespace) -> int:
    from proxy.sinks.progress import retry

    if options.name not in load_settings(options.config).sinks:
        raise Failure(f"sinks: none is called {options.name!r}")
    with store_of(options) as store:
        print(json_line({"sink": options.name, "again": retry(store.engine, options.name)}))
    return 0
