"""Parses durations: "45s", "90m", "24h", "7d", "2w"."""

from __future__ import annotations

import re
from functools import lru_cache

_DURATION = re.compile(r"([1-9][0-9]{0,9})([smhdw])", re.ASCII)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

# Ten years. A longer one is a typing error, and adding it to a date could overflow.
DURATION_S_MAX = 3650 * 86_400


_NOW = frozenset({"now", "0s", "0m", "0h", "0d"})


def seconds_or_now(text: str) -> int:
    """Seconds, as `seconds_from` reads them; `now`, or 0 with a unit → 0. Raises ValueError."""
    return 0 if text in _NOW else seconds_from(text)


@lru_cache(maxsize=256)  # many budgets have few different windows
def seconds_from(text: str) -> int:
    """ "90m" → 5400. Raises ValueError for another format, or more than ten years."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a duration: {text!r} (write a whole number and one of s, m, h, d, w: 90d)")
    seconds = int(match[1]) * _UNIT_S[match[2]]
    if seconds > DURATION_S_MAX:
        raise ValueError(f"longer than ten years: {text!r}")
    return seconds
