"""The settings of the headers that pass between clients and a provider."""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.foundation.header_names import may_pass
from proxy.foundation.secret import Secret
from proxy.settings.fields import FieldPath, FieldType, setting, settings_section

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
# A short prefix would let too much pass.
_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}|[A-Za-z0-9][A-Za-z0-9_-]{2,62}-\*", re.ASCII)
_VALUE = re.compile(r"[!-~](?:[ -~]{0,4094}[!-~])?", re.ASCII)
_REFUSED = "must not be set: it belongs to the connection, to credentials or to the proxy itself"


def _patterns() -> FieldType:
    def read(raw: object, at: FieldPath) -> frozenset[str]:
        if not isinstance(raw, list):
            raise at.wrong("must be a list of names of headers")
        return frozenset(_pattern(one, at.numbered(number)) for number, one in enumerate(raw))

    return FieldType("list of header names; one that ends in `-*` stands for all that begin so", read)


def _pattern(raw: object, at: FieldPath) -> str:
    if not isinstance(raw, str) or _PATTERN.fullmatch(raw) is None:
        raise at.wrong("must be the name of a header, or the beginning of names: `x-ratelimit-*`")
    if not may_pass(raw.lower()):
        raise at.wrong(_REFUSED)
    return raw.lower()


def _fixed() -> FieldType:
    def read(raw: object, at: FieldPath) -> dict[str, Secret]:
        if not isinstance(raw, dict):
            raise at.wrong("must be a mapping of names of headers to values")
        read = {str(name): _value(str(name), value, at.under(str(name))) for name, value in raw.items()}
        if len({name.lower() for name in read}) < len(read):
            raise at.wrong("must not contain a name twice")
        return read

    return FieldType("mapping of names to values; `${VAR}` in a value is filled in", read, secret=True)


def _value(name: str, raw: object, at: FieldPath) -> Secret:
    if _NAME.fullmatch(name) is None:
        raise at.wrong("invalid name of a header")
    if not may_pass(name.lower()):
        raise at.wrong(_REFUSED)
    if not isinstance(raw, str):
        raise at.wrong("must be a text")
    value = at.filled(raw)
    if _VALUE.fullmatch(value) is None:
        raise at.wrong("must be visible ASCII characters, without blanks at the ends")
    return Secret(value)


@settings_section
class HeaderSettings:
    """Headers in addition to those that every SDK and provider needs."""

    up: Mapping[str, Secret] = setting(
        _fixed(), "sent to the provider with every request, instead of the client's", default_factory=dict, shown="{}"
    )
    pass_up: frozenset[str] = setting(
        _patterns(), "passed from the client to the provider", default=frozenset(), shown="[]"
    )
    pass_down: frozenset[str] = setting(
        _patterns(), "passed from the provider to the client", default=frozenset(), shown="[]"
    )
