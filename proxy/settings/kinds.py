"""The kinds of values in settings: each reads a YAML value, checks it and describes itself for the reference.

Invariant: no error quotes a value, which could be a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from proxy.billing.money import NUSD_PER_USD, nusd_from_usd
from proxy.billing.pricing.prices import USD_PER_MILLION_MAX, rate_from_usd
from proxy.billing.record import BillableParts
from proxy.billing.settlement import Situation
from proxy.foundation.durations import seconds_from
from proxy.foundation.secret import Secret
from proxy.settings.fields import TEXT, VARIABLE, FieldPath, FieldType, or_variable, similar
from proxy.settings.variables import SECRET_CHARS_MAX

VISIBLE = re.compile(r"[\x21-\x7e]+", re.ASCII)
_HOST = re.compile(r"\*|[A-Za-z0-9_.:-]+(?: *, *[A-Za-z0-9_.:-]+){0,15}", re.ASCII)
# "user:password@host" with a password that is not empty; variables are removed before the match.
_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@")
_SIZE = re.compile(r"([0-9]{1,15}) ?(KiB|MiB|GiB)", re.ASCII)
_UNIT_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def text(pattern: re.Pattern[str], description: str) -> FieldType:
    """A text that matches `pattern`."""

    def read(raw: object, at: FieldPath) -> str:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if not pattern.fullmatch(value):
            raise at.wrong(f"must be {description}")
        return value

    return FieldType(description, read, schema=TEXT)


def texts(pattern: re.Pattern[str], description: str) -> FieldType:
    """A list of texts that match `pattern`."""
    one = text(pattern, description)

    def read(raw: object, at: FieldPath) -> frozenset[str]:
        if not isinstance(raw, list):
            raise at.wrong(f"must be a list; each element must be {description}")
        return frozenset(one.read(below, at.numbered(number)) for number, below in enumerate(raw))

    return FieldType(f"list; each is {description}", read, schema={"type": "array", "items": TEXT})


def host() -> FieldType:
    """The addresses to listen on."""
    return text(_HOST, "a host name or address, several separated by commas, or `*` for all addresses (IPv4 and IPv6)")


def choice(options: type[StrEnum]) -> FieldType:
    """One of a closed set of values."""
    description = " or ".join(f"`{option}`" for option in options)

    def read(raw: object, at: FieldPath) -> StrEnum:
        value = at.filled(raw) if isinstance(raw, str) else raw
        if value not in list(options):
            raise at.wrong(f"must be {description}")
        return options(str(value))

    return FieldType(description, read, schema=or_variable({"enum": list(map(str, options))}))


def choices(options: tuple[str, ...]) -> FieldType:
    """A list of one or more of a closed set of values."""
    shown = ", ".join(f"`{option}`" for option in options)

    def read(raw: object, at: FieldPath) -> tuple[str, ...]:
        if not isinstance(raw, list) or not raw:
            raise at.wrong(f"must be a list of one or more of {shown}")
        for number, one in enumerate(raw):
            if one not in options:
                raise at.numbered(number).wrong(f"unknown{similar(one, options) or f': must be one of {shown}'}")
        return tuple(raw)

    schema = {"type": "array", "minItems": 1, "items": {"enum": list(options)}}
    return FieldType(f"list of {shown}", read, schema=schema)


def local_or_url(local: str, *schemes: str) -> FieldType:
    """The word `local` (None), or the URL of a server, as a Secret because it may contain a password."""
    description = f"`{local}`, or a URL: {', '.join(f'`{scheme}://…`' for scheme in schemes)}"

    def read(raw: object, at: FieldPath) -> Secret | None:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if value == local:
            return None
        if value != value.strip():
            raise at.wrong("begins or ends with a blank or a line end: remove it")
        scheme, separator, rest = value.partition("://")
        if scheme not in schemes or not separator or not rest.strip("/") or not VISIBLE.fullmatch(value):
            raise at.wrong(f"must be {description}")
        refuse_literal_password(str(raw), at)
        return Secret(value)

    return FieldType(description, read, schema=TEXT)


def refuse_literal_password(url: str, at: FieldPath) -> None:
    """`url`: as written in the file. Raises SettingsError if it has a password that is no `${VAR}`."""
    if not at.literal_secrets and _PASSWORD.search(VARIABLE.sub("", url)):
        raise at.wrong("a password does not belong in this file: write ${VAR}, or set allow_literal_secrets: true")


def checked(kind: FieldType, is_valid: Callable[[Any], object], why: str) -> FieldType:
    """The values of `kind` that are valid. `why`: the error about others."""

    def read(raw: object, at: FieldPath) -> Any:
        value = kind.read(raw, at)
        if not is_valid(value):
            raise at.wrong(why)
        return value

    return replace(kind, read=read)


def pepper() -> FieldType:
    """A secret of 32 bytes, written as hexadecimal digits."""
    return checked(
        secret(),
        lambda value: re.fullmatch(r"[0-9a-f]{64}", value.reveal(), re.ASCII),
        "must be 64 hexadecimal digits: generate them with `tokenweir keys pepper`",
    )


def flag() -> FieldType:
    """True or false."""

    def read(raw: object, at: FieldPath) -> bool:
        value = {"true": True, "false": False}.get(at.filled(raw)) if isinstance(raw, str) else raw
        if not isinstance(value, bool):
            raise at.wrong("must be true or false")
        return value

    return FieldType("`true` or `false`", read, schema=or_variable({"type": "boolean"}))


def flag_or_auto() -> FieldType:
    """True, false, or None for `auto`: detected at run time."""

    def read(raw: object, at: FieldPath) -> bool | None:
        return None if raw == "auto" else bool(flag().read(raw, at))

    return FieldType("`auto`, `true` or `false`", read, schema=or_variable({"enum": ["auto", True, False]}))


def whole(low: int, high: int) -> FieldType:
    """A whole number from `low` to `high`, both included."""
    description = f"a whole number from {low} to {high}"

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value, re.ASCII):
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise at.wrong(f"must be {description}")
        return value

    schema = or_variable({"type": "integer", "minimum": low, "maximum": high})
    return FieldType(description, read, schema=schema)


def number(*allowed: int) -> FieldType:
    """One of a few numbers."""
    description = " or ".join(map(str, allowed))

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        match = next((one for one in allowed if value in (one, str(one)) and not isinstance(value, bool)), None)
        if match is None:
            raise at.wrong(f"must be {description}")
        return match

    return FieldType(description, read, schema=or_variable({"enum": list(allowed)}))


def size(low: int, high: int) -> FieldType:
    """Bytes, as a number or with a unit: 1048576, 1 MiB."""
    number = whole(low, high)
    description = f"bytes from {low} to {high}, also written 64 KiB, 16 MiB, 1 GiB"

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        with_unit = _SIZE.fullmatch(value) if isinstance(value, str) else None
        return int(number.read(int(with_unit[1]) * _UNIT_BYTES[with_unit[2]] if with_unit else value, at))

    schema = {"anyOf": [{"type": "integer", "minimum": low, "maximum": high}, TEXT]}
    return FieldType(description, read, schema=schema)


def seconds(high: float, *, zero: bool = False) -> FieldType:
    """Seconds up to `high`; 0 only with `zero`."""
    return _decimal(f"seconds, {'≥' if zero else '>'} 0 and ≤ {high:g}", high, zero=zero)


def share() -> FieldType:
    """A number from 0 to 1."""
    return _decimal("a number from 0 to 1", 1, zero=True)


def _decimal(description: str, high: float, *, zero: bool) -> FieldType:
    def read(raw: object, at: FieldPath) -> float:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if not (0 <= number <= high and (zero or number > 0)):
            raise at.wrong(f"must be {description}")
        return number

    schema = or_variable({"type": "number", "minimum" if zero else "exclusiveMinimum": 0, "maximum": high})
    return FieldType(description, read, schema=schema)


def duration() -> FieldType:
    """Seconds, written 90d, 12h, …; None: `none`, no limit."""

    def read(raw: object, at: FieldPath) -> int | None:
        value = at.filled(raw) if isinstance(raw, str) else ""
        try:
            return None if value == "none" else seconds_from(value)
        except ValueError as wrong:
            raise at.wrong(str(wrong)) from None

    return FieldType("a duration (90d, 12h, …) or `none`", read, schema=TEXT)


def rate(unit: str = "million tokens", high: int = USD_PER_MILLION_MAX) -> FieldType:
    """A price in nUSD per unit; written in USD per unit, as an exact decimal, from 0 to `high` USD."""

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            return rate_from_usd(value, high)
        except ValueError:
            raise at.wrong(f"must be USD per {unit}, a number from 0 to {high}, no finer than a nano-USD") from None

    schema = {"type": ["number", "string"]}
    return FieldType(f"USD per {unit}", read, schema=schema)


def usd(high: int) -> FieldType:
    """An amount of money in nUSD; written in USD, as an exact decimal, from 0 to `high` USD."""
    description = f"USD from 0 to {high}"

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            nusd = -1 if isinstance(value, bool) else nusd_from_usd(str(value))
        except ValueError:
            nusd = -1
        if not 0 <= nusd <= high * NUSD_PER_USD:
            raise at.wrong(f"must be {description}, no finer than a nano-USD")
        return nusd

    return FieldType(description, read, schema={"type": ["number", "string"]})


def path_of(what: str) -> FieldType:
    """A path, relative to the configuration file's folder. `what`: "folder" or "file", for the reference."""

    def read(raw: object, at: FieldPath) -> Path:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if not value or "\0" in value:
            raise at.wrong(f"must be the path of a {what}")
        return at.folder / Path(value).expanduser()

    return FieldType(what, read, schema=TEXT)


def secret() -> FieldType:
    """A secret: `${VAR}`, or a literal where `allow_literal_secrets` is set."""

    def read(raw: object, at: FieldPath) -> Secret:
        if not isinstance(raw, str):
            raise at.wrong("must be a string: ${VAR}")
        if not at.literal_secrets and not VARIABLE.fullmatch(raw):
            raise at.wrong("a secret does not belong in this file: write ${VAR}, or set allow_literal_secrets: true")
        value = at.filled(raw)
        if not value:
            raise at.wrong(f"the secret is empty{f' ({raw})' if VARIABLE.fullmatch(raw) else ''}")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'`":
            raise at.wrong("the secret is in quotes: remove them")
        if len(value) > SECRET_CHARS_MAX or not VISIBLE.fullmatch(value):
            raise at.wrong(f"the secret must be at most {SECRET_CHARS_MAX} visible ASCII characters, without blanks")
        return Secret(value)

    return FieldType("`${VAR}`", read, schema=TEXT, secret=True)


def policy() -> FieldType:
    """A provider's overrides of the billing policy: situation → billed parts, both as plain strings."""
    parts = ", ".join(f"`{part}`" for part in BillableParts)

    def read(raw: object, at: FieldPath) -> dict[str, str]:
        if not isinstance(raw, dict):
            raise at.wrong("must be a mapping of situations to what is billed")
        return {
            _situation(key, at): str(choice(BillableParts).read(value, at.under(str(key))))
            for key, value in raw.items()
        }

    schema = {"type": "object", "additionalProperties": {"enum": list(map(str, BillableParts))}}
    return FieldType(f"situation: one of {parts}", read, schema=schema)


def _situation(key: object, at: FieldPath) -> str:
    if key not in list(Situation):
        raise at.under(str(key)).wrong(f"unknown situation; must be one of {', '.join(Situation)}")
    return str(key)
