"""What a setting can be, and how the text of a file becomes its value.

Law: a value is either right or refused, and a refusal begins with the path of the field. No refusal quotes a value:
it could be a secret. Every kind says in words what it takes; the reference is made of these words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from proxy.billing.money import NUSD_PER_USD, nusd_from_usd
from proxy.billing.prices import USD_PER_MILLION_MAX, rate_from_usd
from proxy.billing.record import BillableParts
from proxy.billing.settlement import Situation
from proxy.foundation.durations import seconds_from
from proxy.foundation.secret import Secret

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
VISIBLE = re.compile(r"[\x21-\x7e]+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.:-]+", re.ASCII)
# "user:password@host" with something between the colon and the @; a variable there was taken out before.
_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@")
_SIZE = re.compile(r"([0-9]{1,15}) ?(KiB|MiB|GiB)", re.ASCII)
_UNIT_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Longer than any key of any provider; a longer one is a file pasted in the wrong place.
SECRET_CHARS_MAX = 4096


class SettingsError(ValueError):
    """The configuration is wrong. The text begins with the path of the field."""


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A place in the configuration, and what reading a value there needs."""

    env: Mapping[str, str]
    folder: Path
    """what relative paths are relative to"""
    literal_secrets: bool = False
    path: str = ""
    sinks: Mapping[str, type[Any]] = field(default_factory=dict)
    """the kinds of sinks → the dataclasses of their settings"""

    def under(self, name: str) -> FieldPath:
        """The place of the field `name` of this one."""
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    def numbered(self, number: int) -> FieldPath:
        """The place of that one of this list, counted from 0."""
        return replace(self, path=f"{self.path}[{number}]")

    def wrong(self, why: str) -> SettingsError:
        """The refusal of what stands here."""
        return SettingsError(f"{self.path}: {why}" if self.path else why)

    def filled(self, text: str) -> str:
        """`text` with each `${VAR}` replaced by that variable's value. Raises SettingsError if one is missing."""
        return VARIABLE.sub(self._variable, text)

    def _variable(self, match: re.Match[str]) -> str:
        value = self.env.get(match[1])
        if value is None:
            raise self.wrong(f"the environment variable {match[1]} is not set")
        return value


@dataclass(frozen=True, slots=True)
class FieldType:
    """One kind of setting: the words for the reference, and the way from a YAML value to ours."""

    words: str
    read: Callable[[Any, FieldPath], Any]
    section: type[Any] | None = None
    """the dataclass of what stands below, if anything does"""
    suffix: str = ""
    """what the reference writes behind the name of a section that is repeated: `.<name>` or `[]`"""


def about(kind: FieldType, meaning: str, *, default: str | None = None) -> Mapping[str, Any]:
    """The metadata of a setting's dataclass field. `default`: its words, where its value does not speak."""
    return {"kind": kind, "meaning": meaning, "default": default}


def read_section(made: type[Any], raw: object, at: FieldPath, **given: object) -> Any:
    """A mapping → the dataclass `made`, field by field. An absent or empty value is the default."""
    if not isinstance(raw, dict):
        raise at.wrong("must be a mapping of fields")
    known = {one.name: one for one in fields(made) if one.metadata}
    for name in raw:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            raise at.under(str(name)).wrong(f"unknown field{f'; is {near[0]} meant?' if near else ''}")
    values = dict(given)
    for name, one in known.items():
        if raw.get(name) is not None:
            values[name] = one.metadata["kind"].read(raw[name], at.under(name))
        elif one.default is MISSING and one.default_factory is MISSING:
            raise at.under(name).wrong("is missing")
    return made(**values)


def section(made: type[Any]) -> FieldType:
    """Fields below this one."""
    return FieldType("fields", lambda raw, at: read_section(made, raw, at), made)


def sections(made: type[Any], pattern: re.Pattern[str], words: str) -> FieldType:
    """The same fields under each of several names; `made` is given the name as its `name`."""

    def read(raw: object, at: FieldPath) -> dict[str, Any]:
        named = names(raw, at, pattern, words)
        return {name: read_section(made, below, at.under(name), name=name) for name, below in named.items()}

    return FieldType(words, read, made, suffix=".<name>")


def names(raw: object, at: FieldPath, pattern: re.Pattern[str], words: str) -> dict[str, Any]:
    """A mapping of at least one name. Raises SettingsError."""
    if not isinstance(raw, dict) or not raw:
        raise at.wrong("must be a mapping with at least one name in it")
    for name in raw:
        if not isinstance(name, str) or not pattern.fullmatch(name):
            raise at.under(str(name)).wrong(f"not a name: {words}; quote it if YAML takes it for another thing")
    return raw


def several(made: type[Any], words: str) -> FieldType:
    """The same fields several times, in a list."""

    def read(raw: object, at: FieldPath) -> tuple[Any, ...]:
        if not isinstance(raw, list) or not raw:
            raise at.wrong("must be a list with at least one in it")
        return tuple(read_section(made, below, at.numbered(number)) for number, below in enumerate(raw))

    return FieldType(words, read, made, suffix="[]")


def text(pattern: re.Pattern[str], words: str) -> FieldType:
    """A text of a pattern."""

    def read(raw: object, at: FieldPath) -> str:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if not pattern.fullmatch(value):
            raise at.wrong(f"must be {words}")
        return value

    return FieldType(words, read)


def host() -> FieldType:
    """An address to listen on."""
    return text(_HOST, "a host name or address")


def choice(options: type[StrEnum]) -> FieldType:
    """One of a closed set of words."""
    words = " or ".join(f"`{option}`" for option in options)

    def read(raw: object, at: FieldPath) -> StrEnum:
        value = at.filled(raw) if isinstance(raw, str) else raw
        if value not in list(options):
            raise at.wrong(f"must be {words}")
        return options(str(value))

    return FieldType(words, read)


def words(options: tuple[str, ...]) -> FieldType:
    """Some of a closed set of words: a list, at least one."""
    shown = ", ".join(f"`{option}`" for option in options)

    def read(raw: object, at: FieldPath) -> tuple[str, ...]:
        if not isinstance(raw, list) or not raw or any(one not in options for one in raw):
            raise at.wrong(f"must be a list of at least one of {shown}")
        return tuple(raw)

    return FieldType(f"list of {shown}", read)


def place(here: str, *schemes: str) -> FieldType:
    """The word for this machine (None), or the URL of servers elsewhere, as a Secret: a password may stand in it."""
    words = f"`{here}`, or a URL: {', '.join(f'`{scheme}://…`' for scheme in schemes)}"

    def read(raw: object, at: FieldPath) -> Secret | None:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if value == here:
            return None
        scheme, found, rest = value.partition("://")
        if scheme not in schemes or not found or not rest.strip("/") or not VISIBLE.fullmatch(value):
            raise at.wrong(f"must be {words}")
        if not at.literal_secrets and _PASSWORD.search(VARIABLE.sub("", str(raw))):
            raise at.wrong("a password does not belong in this file: write ${VAR}, or set allow_literal_secrets: true")
        return Secret(value)

    return FieldType(words, read)


def pepper() -> FieldType:
    """32 bytes as hexadecimal digits, secret."""
    text_of = secret()

    def read(raw: object, at: FieldPath) -> Secret:
        value: Secret = text_of.read(raw, at)
        if not re.fullmatch(r"[0-9a-f]{64}", value.reveal(), re.ASCII):
            raise at.wrong("must be 64 hexadecimal digits, as `tokenweir keys pepper` prints them")
        return value

    return FieldType("`${VAR}`", read)


def flag() -> FieldType:
    """True or false."""

    def read(raw: object, at: FieldPath) -> bool:
        value = {"true": True, "false": False}.get(at.filled(raw)) if isinstance(raw, str) else raw
        if not isinstance(value, bool):
            raise at.wrong("must be true or false")
        return value

    return FieldType("`true` or `false`", read)


def flag_or_auto() -> FieldType:
    """True, false, or None for "found out from the stream"."""

    def read(raw: object, at: FieldPath) -> bool | None:
        return None if raw == "auto" else bool(flag().read(raw, at))

    return FieldType("`auto`, `true` or `false`", read)


def whole(low: int, high: int) -> FieldType:
    """A whole number, limits included."""
    words = f"a whole number from {low} to {high}"

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value, re.ASCII):
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise at.wrong(f"must be {words}")
        return value

    return FieldType(words, read)


def number(*allowed: int) -> FieldType:
    """One of a few numbers."""
    words = " or ".join(map(str, allowed))

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        found = next((one for one in allowed if value in (one, str(one)) and not isinstance(value, bool)), None)
        if found is None:
            raise at.wrong(f"must be {words}")
        return found

    return FieldType(words, read)


def size(low: int, high: int) -> FieldType:
    """Bytes, as a number or with a unit: 1048576, 1 MiB."""
    number = whole(low, high)
    words = f"bytes from {low} to {high}, also written 64 KiB, 16 MiB, 1 GiB"

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        written = _SIZE.fullmatch(value) if isinstance(value, str) else None
        return int(number.read(int(written[1]) * _UNIT_BYTES[written[2]] if written else value, at))

    return FieldType(words, read)


def seconds(high: float, *, zero: bool = False) -> FieldType:
    """Seconds above 0 (or from 0 on) up to `high`."""
    words = f"seconds, {'≥' if zero else '>'} 0 and ≤ {high:g}"

    def read(raw: object, at: FieldPath) -> float:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if not (0 <= number <= high and (zero or number > 0)):
            raise at.wrong(f"must be {words}")
        return number

    return FieldType(words, read)


def duration() -> FieldType:
    """Seconds, written 90d, 12h, …; `none` for no limit."""

    def read(raw: object, at: FieldPath) -> int | None:
        value = at.filled(raw) if isinstance(raw, str) else ""
        try:
            return None if value == "none" else seconds_from(value)
        except ValueError as wrong:
            raise at.wrong(str(wrong)) from None

    return FieldType("a duration (90d, 12h, …) or `none`", read)


def rate(unit: str = "million tokens", high: int = USD_PER_MILLION_MAX) -> FieldType:
    """A price, in nUSD per unit here; written in USD per unit, as an exact decimal, from 0 to `high` USD."""

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            return rate_from_usd(value, high)
        except ValueError:
            raise at.wrong(f"must be USD per {unit}, a number from 0 to {high}, no finer than a nano-USD") from None

    return FieldType(f"USD per {unit}", read)


def usd(high: int) -> FieldType:
    """An amount of money, in nUSD here; written in USD, as an exact decimal, from 0 to `high` USD."""
    words = f"USD from 0 to {high}"

    def read(raw: object, at: FieldPath) -> int:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            nusd = -1 if isinstance(value, bool) else nusd_from_usd(str(value))
        except ValueError:
            nusd = -1
        if not 0 <= nusd <= high * NUSD_PER_USD:
            raise at.wrong(f"must be {words}, no finer than a nano-USD")
        return nusd

    return FieldType(words, read)


def path_of(what: str) -> FieldType:
    """A path; a relative one starts at the configuration file. `what`: folder or file, for the reference."""

    def read(raw: object, at: FieldPath) -> Path:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if not value or "\0" in value:
            raise at.wrong(f"must be the path of a {what}")
        return at.folder / Path(value).expanduser()

    return FieldType(what, read)


def secret() -> FieldType:
    """A provider's key: `${VAR}`, or a literal one where that is allowed."""

    def read(raw: object, at: FieldPath) -> Secret:
        if not isinstance(raw, str):
            raise at.wrong("must be a text, ${VAR}")
        if not at.literal_secrets and not VARIABLE.fullmatch(raw):
            raise at.wrong("a secret does not belong in this file: write ${VAR}, or set allow_literal_secrets: true")
        value = at.filled(raw)
        if not value:
            raise at.wrong(f"the secret is empty{f' ({raw})' if VARIABLE.fullmatch(raw) else ''}")
        if len(value) > SECRET_CHARS_MAX or not VISIBLE.fullmatch(value):
            raise at.wrong("the secret has blanks, line ends or characters beyond ASCII in it, or is too long")
        return Secret(value)

    return FieldType("`${VAR}`", read)


def policy() -> FieldType:
    """The provider's own lines of the billing policy: situation → what is billed. Plain words on both sides."""
    what = ", ".join(f"`{bills}`" for bills in BillableParts)

    def read(raw: object, at: FieldPath) -> dict[str, str]:
        if not isinstance(raw, dict):
            raise at.wrong("must be a mapping of situations")
        return {
            _situation(key, at): str(choice(BillableParts).read(value, at.under(str(key))))
            for key, value in raw.items()
        }

    return FieldType(f"situation: one of {what}", read)


def _situation(key: object, at: FieldPath) -> str:
    if key not in list(Situation):
        known = ", ".join(Situation)
        raise at.under(str(key)).wrong(f"unknown situation; there are {known}")
    return str(key)
