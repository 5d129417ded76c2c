"""Reads rows of usage from CSV, JSON lines, and OpenTelemetry logs of coding agents (OTLP as JSON lines).

Invariants: a row is read as it is, or not at all: an unknown field, a count that is not a number and counts that
contradict each other are errors that name the line and the field. Errors quote no text of the file except names.
Memory does not grow with the file: a line, or a row of CSV that has several, has at most LINE_CHARS_MAX characters.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from proxy.billing.correction import AMOUNT_NUSD_MAX, PARTS
from proxy.billing.dimensions import END_USER, NAMED, RUN, SESSION, VALUE_CHARS_MAX, value_of
from proxy.billing.entries import COUNTS
from proxy.billing.imported import ImportedRow
from proxy.billing.money import Nusd, nusd_from_usd_rounded_half_up, usd_text
from proxy.foundation.times import iso_time
from proxy.metering.counts import violations
from proxy.metering.usage import TOKENS_MAX, UNIT_COUNTS, UNITS_MAX, Usage

LINE_CHARS_MAX = 1 << 20
NAME_CHARS_MAX = 256
# The year 9999, in Unix seconds.
_TIME_MAX = 253_370_764_800.0
FIELDS = ("time", "model", "provider", "key", "id", "cost_usd", *COUNTS, *NAMED)
"""the fields of a row of CSV or JSON"""


class FileFormat(StrEnum):
    """The formats of files."""

    CSV = "csv"
    JSONL = "jsonl"
    OTLP = "otlp"
    """each line is an ExportLogsServiceRequest, as written by the file exporter of the OpenTelemetry Collector"""


class RowError(NamedTuple):
    """Why a line cannot be imported."""

    line: int
    why: str
    """the message, with the name of the field"""


class _FieldError(ValueError):
    """The message names the field."""


def format_of(path: Path) -> FileFormat:
    """The format, by the suffix of the file name. Raises ValueError."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix in (FileFormat.CSV, FileFormat.JSONL, FileFormat.OTLP):
        return FileFormat(suffix)
    raise ValueError(f"{path}: the name does not show the format: use --format")


def read_rows(path: Path, of: FileFormat) -> Iterator[ImportedRow | RowError]:
    """The rows of a file, in its order, without OpenTelemetry events that are no requests. Raises OSError, and
    ValueError for a file that is not text."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _Lines(file)
        try:
            if of is FileFormat.CSV:
                yield from _csv(lines)
                return
            read = _READERS[of]
            for line in lines:
                lines.in_row = 0
                if line.strip():
                    yield from read(lines.number, line)
        except _TooLongError:
            yield RowError(lines.number, f"the line is longer than {LINE_CHARS_MAX} characters")


class _TooLongError(Exception):
    """A line, or a row of several lines, that is not read."""


class _Lines:
    """The lines of a file. Raises _TooLongError."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.number = 0
        """number of the last line; the first is 1"""
        self.in_row = 0
        """characters of the current row, which the reader of rows sets to 0"""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(LINE_CHARS_MAX + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.in_row += len(line)
        if self.in_row > LINE_CHARS_MAX:
            raise _TooLongError
        return line


def _csv(lines: _Lines) -> Iterator[ImportedRow | RowError]:
    rows = csv.DictReader(lines, restkey="")
    try:
        names = [name.strip() for name in rows.fieldnames or ()]
        rows.fieldnames = names
        if unknown := [name for name in names if name not in FIELDS]:
            yield RowError(1, f"{_shown(unknown[0])}: unknown column; the columns are {', '.join(FIELDS)}")
            return
        if len(set(names)) < len(names):
            yield RowError(1, "two columns have the same name")
            return
        for row in rows:
            lines.in_row = 0
            if "" in row:
                yield RowError(rows.line_num, "the row has more values than the first line has names")
            else:
                yield _row_or_error(rows.line_num, "csv", {name: text for name, text in row.items() if text})
    except csv.Error as error:
        yield RowError(rows.line_num, f"not valid CSV: {error}")


def _jsonl(number: int, line: str) -> Iterator[ImportedRow | RowError]:
    document = _document(line)
    if document is None:
        yield RowError(number, "not a JSON object")
        return
    if unknown := [name for name in document if name not in FIELDS]:
        yield RowError(number, f"{_shown(unknown[0])}: unknown field; the fields are {', '.join(FIELDS)}")
        return
    yield _row_or_error(number, "jsonl", document)


def _otlp(number: int, line: str) -> Iterator[ImportedRow | RowError]:
    document = _document(line)
    if document is None or not isinstance(document.get("resourceLogs"), list):
        yield RowError(number, "resourceLogs: is missing: each line must be an export of logs as JSON")
        return
    for record, resource in _log_records(document):
        attributes = {**resource, **_attributes(record)}
        for source, event in _EVENTS.items():
            if event.matches(_event_name(record, attributes), attributes):
                try:
                    fields = event.fields(attributes, _logged_at(record, attributes))
                except _FieldError as wrong:
                    yield RowError(number, str(wrong))
                else:
                    yield _row_or_error(number, source, fields)


_READERS: Mapping[FileFormat, Callable[[int, str], Iterator[ImportedRow | RowError]]] = {
    FileFormat.JSONL: _jsonl,
    FileFormat.OTLP: _otlp,
}


# -- events of agents


class _Event(NamedTuple):
    """The event of one request, as an agent logs it."""

    name: str
    kind: str | None
    """the attribute `event.kind`; None: there is none"""
    provider: str
    session: str
    """the name of the attribute with the session"""
    counts: Callable[[Mapping[str, Any]], dict[str, Any]]
    """attributes → counts"""

    def matches(self, name: str, attributes: Mapping[str, Any]) -> bool:
        return name == self.name and (self.kind is None or attributes.get("event.kind") == self.kind)

    def fields(self, attributes: Mapping[str, Any], time: object) -> dict[str, Any]:
        """The fields of a row."""
        people = ("user.email", "user.account_id", "user.account_uuid", "user.id")
        end_user = next((attributes[name] for name in people if attributes.get(name)), None)
        named = {
            "time": time, "model": attributes.get("model"), "provider": self.provider,
            "id": attributes.get("request_id"), "cost_usd": attributes.get("cost_usd"),
            END_USER: end_user, SESSION: attributes.get(self.session),
        }  # fmt: skip
        found = {**named, **self.counts(attributes)}
        return {name: value for name, value in found.items() if value not in (None, "")}


def _claude_counts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of Claude Code's event. The prompt is the sum of the tokens read from the cache, written to it, and
    neither."""
    read, written = (_whole(name, attributes.get(name) or 0) for name in ("cache_read_tokens", "cache_creation_tokens"))
    return {
        "prompt_tokens": _whole("input_tokens", attributes.get("input_tokens") or 0) + read + written,
        "cached_tokens": read,
        "cache_write_tokens": written,
        "completion_tokens": attributes.get("output_tokens"),
    }


def _codex_counts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": attributes.get("input_token_count"),
        "cached_tokens": attributes.get("cached_token_count"),
        "completion_tokens": attributes.get("output_token_count"),
        "reasoning_tokens": attributes.get("reasoning_token_count"),
    }


_EVENTS: Mapping[str, _Event] = {
    "claude_code": _Event("claude_code.api_request", None, "anthropic", "session.id", _claude_counts),
    "codex": _Event("codex.sse_event", "response.completed", "openai", "conversation.id", _codex_counts),
}


def _log_records(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """The log records of an export, each with the attributes of its resource."""
    for of_resource in _objects(document, "resourceLogs"):
        resource = of_resource.get("resource")
        shared = _attributes(resource) if isinstance(resource, dict) else {}
        for scope in _objects(of_resource, "scopeLogs"):
            for record in _objects(scope, "logRecords"):
                yield record, shared


def _objects(of: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    found = of.get(name)
    return (one for one in (found if isinstance(found, list) else ()) if isinstance(one, dict))


def _attributes(of: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(one.get("key")): next(iter(one["value"].values()))
        for one in _objects(of, "attributes")
        if isinstance(one.get("value"), dict) and one["value"]
    }


def _event_name(record: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    """The event's name with its prefix. Claude Code's body has the prefix, its attribute `event.name` does not."""
    name, body = attributes.get("event.name"), record.get("body")
    text = body.get("stringValue") if isinstance(body, dict) else None
    return next((one for one in (name, text, record.get("eventName")) if isinstance(one, str) and "." in one), "")


def _logged_at(record: Mapping[str, Any], attributes: Mapping[str, Any]) -> object:
    nanos = str(record.get("timeUnixNano") or "0")
    if nanos.isascii() and nanos.isdigit() and 0 < int(nanos) < 10**19:
        return int(nanos) // 1000 / 1_000_000
    return attributes.get("event.timestamp")


# -- fields


def _row_or_error(line: int, source: str, fields: Mapping[str, Any]) -> ImportedRow | RowError:
    try:
        return _row(line, source, fields)
    except _FieldError as wrong:
        return RowError(line, str(wrong))


def _row(line: int, source: str, fields: Mapping[str, Any]) -> ImportedRow:
    given = {name: value for name, value in fields.items() if value is not None}
    counts = {name: _whole(name, given[name]) for name in COUNTS if name in given}
    usage, cost_nusd = _usage(counts), _cost(given)
    if usage.reported_nothing and cost_nusd is None:
        raise _FieldError("prompt_tokens: is missing: a row needs counts, or cost_usd")
    return ImportedRow(
        line=line,
        source=source,
        at=_moment(given.get("time")),
        model=_text(given, "model", needed=True) or "",
        usage=usage,
        provider=_text(given, "provider"),
        key=_text(given, "key"),
        cost_nusd=cost_nusd,
        row_id=_text(given, "id"),
        dimensions={name: _value(name, given[name]) for name in (END_USER, SESSION, RUN) if name in given},
    )


def _usage(counts: Mapping[str, int]) -> Usage:
    prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
    total = counts.get("total_tokens")
    if prompt is not None and completion is not None:
        if total not in (None, prompt + completion):
            raise _FieldError("total_tokens: is not the sum of prompt_tokens and completion_tokens")
        counts = {**counts, "total_tokens": prompt + completion}
    usage = Usage(**counts)
    for part, whole in PARTS:
        if (getattr(usage, part) or 0) > (getattr(usage, whole) or 0):
            raise _FieldError(f"{part}: is part of {whole}, and cannot be higher")
    if flag := next(violations(usage), None):
        raise _FieldError(f"prompt_tokens: the counts contradict each other ({flag})")
    return usage


def _whole(name: str, value: object) -> int:
    most = UNITS_MAX if name in UNIT_COUNTS else TOKENS_MAX
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most):
        raise _FieldError(f"{name}: must be a whole number from 0 to {most}")
    return int(text)


def _cost(given: Mapping[str, Any]) -> Nusd | None:
    if "cost_usd" not in given:
        return None
    try:
        usd = Decimal(str(given["cost_usd"]).strip())
        if 0 <= usd * 10**9 <= AMOUNT_NUSD_MAX:
            return nusd_from_usd_rounded_half_up(usd)
    except ArithmeticError:  # no number, or one of too many digits
        pass
    raise _FieldError(f"cost_usd: must be a number from 0 to {usd_text(AMOUNT_NUSD_MAX)}")


def _moment(value: object) -> float:
    if isinstance(value, float):
        if not 0 <= value < _TIME_MAX:  # not a number, too
            raise _FieldError("time: must be between 1970 and 9999")
        return value
    moment = iso_time(value.strip()) if isinstance(value, str) else None
    if moment is None:
        raise _FieldError("time: must be a date and time, such as 2026-11-01T12:00:00Z")
    return round(moment, 6)


def _text(given: Mapping[str, Any], name: str, *, needed: bool = False) -> str | None:
    value = given.get(name)
    if value is None and not needed:
        return None
    text = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(text) <= NAME_CHARS_MAX or not text.isprintable():
        raise _FieldError(f"{name}: must have 1 to {NAME_CHARS_MAX} printable characters")
    return text


def _value(name: str, value: object) -> str:
    text = value_of(value) if isinstance(value, str) else None
    if text is None:
        raise _FieldError(f"{name}: must have 1 to {VALUE_CHARS_MAX} printable characters")
    return text


def _document(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _shown(name: str) -> str:
    return name if len(name) <= 40 and name.isascii() and name.isprintable() else "…"
