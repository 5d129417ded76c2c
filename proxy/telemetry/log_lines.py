"""The log: one line for each ended exchange, one for each kind of refusal in a while, as text or as JSON.

Invariants: no line has a prompt, an answer, a key's secret, or a text of a client but the model's name. An exchange
adds a reference to a list; lines are made four times a second and written in a thread, so that nothing waits for a full
pipe.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from proxy.billing.details import EntryDetails
from proxy.billing.record import UsageRecord

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
WRITE_S = 0.25
# One line for each status and code of refusals in this time.
REFUSALS_S = 10.0
# A provider's error codes are its own words.
REFUSALS_MAX = 64

_plain = re.compile(r"[!#-<>-~]+", re.ASCII).fullmatch
EXCHANGES = "proxy.exchanges"
_refusals = logging.getLogger("proxy.refusals")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, and `exception` with the
    traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(*, as_json: bool) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)


class ExchangeLog:
    """The lines of ended exchanges and of refusals. Call it on the event loop; `close` writes the remaining lines."""

    def __init__(self, *, exchanges: bool, as_json: bool, write: Callable[[str], object] | None = None) -> None:
        """`exchanges`: each ended one gets a line. `write`: writes a line; None: to standard error, where a line is
        shorter than the system's atomic write."""
        self._exchanges = exchanges
        self._line = _json_line if as_json else _text_line
        self._write_line = sys.stderr.write if write is None else write
        self._loop = asyncio.get_running_loop()
        self._ended: list[UsageRecord] = []
        self._refused: Counter[str] = Counter()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def ended(self, record: UsageRecord) -> None:
        """An exchange has ended with this record."""
        if not self._exchanges:
            return
        if not self._ended:
            self._timers["exchanges"] = self._loop.call_later(WRITE_S, self._write_later)
        self._ended.append(record)

    def refused(self, status: int, code: str | None) -> None:
        """A request was refused."""
        if not self._refused:
            self._timers["refusals"] = self._loop.call_later(REFUSALS_S, self._write_refusals)
        kind = f"{status} {_word(code)}" if code else str(status)
        if kind not in self._refused and len(self._refused) < REFUSALS_MAX:
            _refusals.info("refused: %s", kind)
        if kind in self._refused or len(self._refused) < REFUSALS_MAX:
            self._refused[kind] += 1

    def close(self) -> None:
        """Stop the timers, and write the lines that are not written yet."""
        for timer in self._timers.values():
            timer.cancel()
        self._write_refusals()
        self._write(self._taken())

    def _taken(self) -> list[UsageRecord]:
        ended, self._ended = self._ended, []
        return ended

    def _write_later(self) -> None:
        self._loop.run_in_executor(None, self._write, self._taken())

    def _write(self, ended: list[UsageRecord]) -> None:
        for record in ended:
            self._write_line(self._line(record))

    def _write_refusals(self) -> None:
        refused, self._refused = self._refused, Counter()
        for kind, number in refused.items():
            if number > 1:
                _refusals.info("refused: %s, %d times in %.0f s", kind, number, REFUSALS_S)


def _text_line(record: UsageRecord) -> str:
    """A line in the form of TEXT_FORMAT. It is made here since `logging` costs ten times as much."""
    at = _ended_at(record)
    words = " ".join(f"{name}={value}" for name, value in exchange_fields(record, _word).items() if value is not None)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{stamp},{int(at * 1000) % 1000:03d} INFO {EXCHANGES}: {words}\n"


def _json_line(record: UsageRecord) -> str:
    """A line in the form of `JsonFormatter`."""
    when = datetime.fromtimestamp(_ended_at(record), UTC).isoformat(timespec="milliseconds")
    head = {"time": when, "level": "INFO", "logger": EXCHANGES, "message": "exchange ended"}
    return json.dumps(head | exchange_fields(record)) + "\n"


def _ended_at(record: UsageRecord) -> float:
    return record.opened.started_at + record.duration_ms / 1000


def _word(text: str) -> str:
    """A model's name is a client's text: it could look like another field, or like another line."""
    return text if _plain(text) else json.dumps(text)


def exchange_fields(record: UsageRecord, client_text: Callable[[str], str] = str) -> dict[str, Any]:
    """The fields in the line of an exchange. Times in milliseconds. `client_text`: how a text is written that is not
    the proxy's."""
    opened, usage, failed = record.opened, record.reading.usage, EntryDetails.of(record.details).failed
    attempts = ", ".join(f"{one.provider}: {one.failed}" for one in opened.attempts)
    return {
        "exchange": opened.exchange_id,
        "key": opened.key_id,
        "model": client_text(opened.model),
        "provider": opened.provider,
        "endpoint": opened.endpoint,
        "streamed": opened.streamed,
        "outcome": record.outcome.value,
        "usage": record.reading.source.value,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "first_token_ms": record.first_token_ms,
        "duration_ms": record.duration_ms,
        "failed": None if failed is None else client_text(failed),
        "attempts": client_text(attempts) if attempts else None,
    }
