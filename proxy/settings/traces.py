"""The settings of traces. Invariant: the value of a header is a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from proxy.foundation.secret import Secret
from proxy.settings.fields import VARIABLE, FieldPath, FieldType, setting, settings_section
from proxy.settings.kinds import VISIBLE, checked, share, text
from proxy.settings.urls import url
from proxy.settings.variables import SECRET_CHARS_MAX

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
# Headers that the exporter sets itself.
_OURS = frozenset({"connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding"})
_SERVICE = re.compile(rf"(?=.{{1,200}}$){VISIBLE.pattern}", re.ASCII)


def _endpoint() -> FieldType:
    """The collector's URL with its path."""
    why = "must be the whole URL, path included, such as http://collector:4318/v1/traces"
    return checked(url(), lambda value: urlsplit(value).path, why)


def _headers() -> FieldType:
    """Header name → secret value."""
    description = "a mapping of header names to `${VAR}`, or to text with it: `Bearer ${VAR}`"

    def read(raw: object, at: FieldPath) -> dict[str, Secret]:
        if not isinstance(raw, dict):
            raise at.wrong(f"must be {description}")
        headers = {_name(name, at): _value(value, at.under(str(name))) for name, value in raw.items()}
        if len(headers) < len(raw):
            raise at.wrong("duplicate header: names that differ only in case are the same header")
        return headers

    return FieldType(description, read)


def _name(name: object, at: FieldPath) -> str:
    """The header's name in lower case. Raises SettingsError."""
    if not isinstance(name, str) or not _HEADER.fullmatch(name):
        raise at.under(str(name)).wrong("is not a valid header name")
    if name.lower() in _OURS:
        raise at.under(str(name)).wrong("cannot be set: the exporter sets this header itself")
    return name.lower()


def _value(raw: object, at: FieldPath) -> Secret:
    if not isinstance(raw, str):
        raise at.wrong("must be a string: ${VAR}")
    if not at.literal_secrets and not VARIABLE.search(raw):
        raise at.wrong("a secret does not belong in this file: write ${VAR}, or set allow_literal_secrets: true")
    value = at.filled(raw).strip()
    if not value or len(value) > SECRET_CHARS_MAX or not (value.isascii() and value.isprintable()):
        raise at.wrong(f"the value must be 1 to {SECRET_CHARS_MAX} printable ASCII characters")
    return Secret(value)


@settings_section
class TracesSettings:
    """The OTLP collector; see `proxy/telemetry/traces`."""

    endpoint: str = setting(_endpoint(), "the collector's URL for traces, such as `http://collector:4318/v1/traces`")
    headers: Mapping[str, Secret] = setting(
        _headers(), "headers of each request to the collector", default_factory=dict, shown="{}"
    )
    sample: float = setting(
        share(), "share of exchanges that get a span, unless the client's `traceparent` decides it", default=1.0
    )
    service_name: str = setting(
        text(_SERVICE, "up to 200 visible ASCII characters"), "`service.name` of the spans", default="tokenweir"
    )
