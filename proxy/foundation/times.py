"""Times as text: output in ISO 8601 (UTC), input as people type it and as servers send it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from email.utils import parsedate_to_datetime

from proxy.foundation.durations import seconds_from


def iso_utc(unix_s: float) -> str:
    """Unix seconds → "2026-11-01T12:00:00.000000Z"."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def since_from(text: str, now: float, zone: tzinfo = UTC) -> float:
    """The text of `--since` → Unix seconds.

    Accepts a duration before `now` ("90m", "24h", "7d"), a date or an ISO time; `zone`: of a time without one.
    Raises ValueError that names the accepted forms.
    """
    if text.endswith(("s", "m", "h", "d", "w")):
        return now - seconds_from(text)
    moment = iso_time(text, zone)
    if moment is None:
        raise ValueError(f"not a time: {text!r} (2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d)")
    return moment


def iso_time(text: str, zone: tzinfo = UTC) -> float | None:
    """A date or an ISO time → Unix seconds; None: it is neither. `zone`: the time zone of a time that names none."""
    moment = _parsed(text)
    if moment is None or not 1970 <= moment.year < 9999:  # years that every supported database can store
        return None
    return moment.replace(tzinfo=moment.tzinfo or zone).timestamp()


def _parsed(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?", re.ASCII)


def retry_after_s(value: str, unix_now: float) -> float | None:
    """The seconds of a `Retry-After` header, given as a number or a date; None if it is neither. Some providers give
    fractions."""
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return float(text[:9])  # 30 years; bounds the conversion
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, zoned.timestamp() - unix_now)
