"""The types of options: argparse calls them to read a value.

Invariant: a wrong value ends the command before its work, with exit code 2 and a message that names the option. A type
loads what it needs when it is called, so that `--help` and completion stay quick.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from proxy.billing.money import Nusd, nusd_from_usd, usd_text
from proxy.foundation.durations import seconds_from, seconds_or_now
from proxy.foundation.times import since_from

if TYPE_CHECKING:
    from proxy.billing.limits import Measure
    from proxy.billing.period import Month

NONE = "none"

_T = TypeVar("_T")


def option_value(read: Callable[[str], _T], text: str) -> _T:
    """Parse an option with `read`, so that argparse prints the message of a ValueError."""
    try:
        return read(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def moment(text: str) -> float:
    """A time, or a duration before now. Returns Unix seconds."""
    return option_value(lambda one: since_from(one, time.time()), text)


def future(text: str) -> float:
    """A time after now, or a duration from now. Returns Unix seconds."""
    from proxy.billing.keys import expires_at_from

    at = None if text == "never" else option_value(lambda one: expires_at_from(one, time.time()), text)
    if at is None:
        raise argparse.ArgumentTypeError("must be a date, or a duration such as 14d")
    return at


def moment_text(text: str) -> str:
    """A text that `moment` accepts, for a command with a time zone in another option."""
    moment(text)
    return text


def email_address(text: str) -> str:
    """One e-mail address, without a name."""
    from proxy.settings.mail import is_address

    if not is_address(text):
        raise argparse.ArgumentTypeError("must be an e-mail address, such as billing@example.com")
    return text


def duration(text: str) -> int:
    """A duration, such as `90m`. Returns seconds."""
    return option_value(seconds_from, text)


def duration_or_now(text: str) -> int:
    """A duration, or `now`. Returns seconds."""
    return option_value(seconds_or_now, text)


def lifetime(text: str) -> str:
    """A duration, a date or `never`. Returns the same text."""
    from proxy.billing.keys import expires_at_from

    option_value(lambda one: expires_at_from(one, time.time()), text)
    return text


def month(text: str) -> Month:
    """A calendar month: `2026-11`."""
    from proxy.billing.period import month_from

    return option_value(month_from, text)


def window(text: str) -> str:
    """The window of a budget. Returns the same text."""
    from proxy.billing.windows import checked_window

    return option_value(checked_window, text)


def time_zone(text: str) -> str | None:
    """The name of a time zone; `none`: UTC."""
    from proxy.billing.windows import checked_time_zone

    return None if text == NONE else option_value(checked_time_zone, text)


def quota(text: str) -> tuple[Measure, int]:
    """A quota of a limit by rule: `requests=100`."""
    from proxy.billing.limits import QUOTA_MAX, Measure

    name, _, most = text.partition("=")
    if name not in {one.value for one in Measure}:
        raise argparse.ArgumentTypeError(f"must be MEASURE=N, with {', '.join(Measure)}, not {text!r}")
    number = Whole(1, QUOTA_MAX)(most)
    assert number is not None
    return Measure(name), number


def dimension_value(text: str) -> tuple[str, str]:
    """A dimension and its value: `end_user=alice`; or `none`, with an empty value."""
    name, separator, value = text.partition("=")
    if not separator and text != NONE:
        raise argparse.ArgumentTypeError("must be NAME=VALUE, as end_user=alice or tag:team=red")
    return name, value


def byok_terms(text: str) -> str | None:
    """The terms of a key whose clients send their own provider credential; `none`: None."""
    from proxy.billing.byok import terms_of

    return None if text == NONE else option_value(terms_of, text)


def folder(text: str) -> Path:
    """A folder that exists."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is not a folder")
    return path


class Whole:
    """A whole number in a range. `or_none`: `none` is read as None."""

    def __init__(self, least: int, most: int | None = None, *, or_none: bool = False) -> None:
        self._least, self._most, self._or_none = least, most, or_none

    def __call__(self, text: str) -> int | None:
        if self._or_none and text == NONE:
            return None
        try:
            number = int(text)
        except ValueError:
            number = self._least - 1
        if not text.isascii() or number < self._least or (self._most is not None and number > self._most):
            to = f"{self._least} or more" if self._most is None else f"{self._least} to {self._most}"
            raise argparse.ArgumentTypeError(f"must be a whole number, {to}, not {text!r}")
        return number


class Usd:
    """An amount in USD within a range of nano-dollars. Returns nano-dollars. `or_none`: `none` is read as None."""

    def __init__(self, least: int, most: int, *, or_none: bool = False, not_zero: bool = False) -> None:
        self._least, self._most = Nusd(least), Nusd(most)
        self._or_none, self._not_zero = or_none, not_zero

    def __call__(self, text: str) -> Nusd | None:
        if self._or_none and text == NONE:
            return None
        amount = option_value(nusd_from_usd, text)
        if not self._least <= amount <= self._most or (self._not_zero and not amount):
            but = ", not 0" if self._not_zero else ""
            raise argparse.ArgumentTypeError(
                f"must be {usd_text(self._least)} to {usd_text(self._most)} USD{but}: {text!r}"
            )
        return amount


class Printable:
    """A text of so many printable characters, not all of them spaces."""

    def __init__(self, chars_max: int, chars_min: int = 1) -> None:
        self._chars = range(chars_min, chars_max + 1)

    def __call__(self, text: str) -> str:
        if not text.strip() or len(text) not in self._chars or not text.isprintable():
            span = f"{self._chars.start} to {self._chars.stop - 1}"
            raise argparse.ArgumentTypeError(f"must be {span} printable characters, not {text!r}")
        return text


NAME = Printable(128)
"""the name of a key or an account"""
REASON = Printable(500)
TAG = Printable(64)
PORT = Whole(0, 65_535)
