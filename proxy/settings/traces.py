"""The settings of traces. Law: as of all settings; see values.py. What a collector asks for in a header is a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from proxy.foundation.secret import Secret
from proxy.settings.kinds import SECRET_CHARS_MAX, VARIABLE, VISIBLE, FieldPath, FieldType, about, text
from proxy.settings.urls import url

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
# What the request is, and not who sends it.
_OURS = frozenset({"connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding"})
_SERVICE = re.compile(rf"(?=.{{1,200}}$){VISIBLE.pattern}", re.ASCII)


def _endpoint() -> FieldType:
    """The whole URL, as the collector has it."""
    any_url = url()

    def read(raw: object, at: FieldPath) -> str:
        value: str = any_url.read(raw, at)
        if not urlsplit(value).path:
            raise at.wrong("must be the whole URL, with its path: http://collector:4318/v1/traces")
        return value

    return FieldType("URL", read)


def _headers() -> FieldType:
    """Name → value, secret."""
    words = "a mapping of header names to `${VAR}`, or words around it: `Bearer ${VAR}`"

    def read(raw: object, at: FieldPath) -> dict[str, Secret]:
        if not isinstance(raw, dict):
            raise at.wrong(f"must be {words}")
        found = {_name(name, at): _value(value, at.under(str(name))) for name, value in raw.items()}
        if len(found) < len(raw):
            raise at.wrong("a header is written twice")
        return found

    return FieldType(words, read)


def _name(name: object, at: FieldPath) -> str:
    """In small letters: it is the same header however it is written."""
    if not isinstance(name, str) or not _HEADER.fullmatch(name) or name.lower() in _OURS:
        raise at.under(str(name)).wrong("no header that can be set here")
    return name.lower()


def _value(raw: object, at: FieldPath) -> Secret:
    if not isinstance(raw, str):
        raise at.wrong("must be a text, ${VAR}")
    if not at.literal_secrets and not VARIABLE.search(raw):
        raise at.wrong("a secret does not belong in this file: write ${VAR}, or set allow_literal_secrets: true")
    value = at.filled(raw).strip()
    if not value or len(value) > SECRET_CHARS_MAX or not (value.isascii() and value.isprintable()):
        raise at.wrong("the header is empty, too long, or has line ends or characters beyond ASCII in it")
    return Secret(value)


def _share() -> FieldType:
    """From nothing to all."""
    words = "a number from 0 to 1"

    def read(raw: object, at: FieldPath) -> float:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            share = -1.0 if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
        except (ValueError, OverflowError):
            share = -1.0
        if not 0 <= share <= 1:
            raise at.wrong(f"must be {words}")
        return share

    return FieldType(words, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesSettings:
    """Where spans go; see `proxy/traces`."""

    endpoint: str = field(
        metadata=about(_endpoint(), "the collector's address for traces: `http://collector:4318/v1/traces`")
    )
    headers: Mapping[str, Secret] = field(
        default_factory=dict, metadata=about(_headers(), "what it asks for in each request", default="{}")
    )
    sample: float = field(
        default=1.0,
        metadata=about(_share(), "share of the exchanges that have a span, where the client's `traceparent` says none"),
    )
    service_name: str = field(
        default="tokenweir",
        metadata=about(text(_SERVICE, "up to 200 visible ASCII characters"), "`service.name` of the spans"),
    )
