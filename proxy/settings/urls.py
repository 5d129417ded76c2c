"""The base URL of a provider. Invariant: it contains no secret and nothing that two parsers could read differently."""

from __future__ import annotations

from urllib.parse import urlsplit

from proxy.metering.dialects import DIALECTS
from proxy.settings.fields import TEXT, FieldPath, FieldType
from proxy.settings.kinds import VISIBLE


def url() -> FieldType:
    """The base URL of a provider, without a trailing slash."""

    def read(raw: object, at: FieldPath) -> str:
        value = at.filled(raw) if isinstance(raw, str) else ""
        problem = _problem(value)
        if problem:
            raise at.wrong(problem)
        return value.rstrip("/")

    return FieldType("URL", read, schema=TEXT)


def _problem(value: str) -> str | None:
    """The reason why `value` is not a base URL; None if it is one."""
    if not VISIBLE.fullmatch(value) or "\\" in value:
        return "must be a URL of visible ASCII characters"
    try:
        parts = urlsplit(value)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.scheme not in ("http", "https"):
        return "must be a URL, http://host… or https://host…"
    if "@" in parts.netloc:
        return "must not contain a user name or a password"
    if "?" in value or "#" in value:
        return "must not contain a query or a fragment"
    if {"..", "."} & set(parts.path.split("/")) or "//" in parts.path or "%" in parts.path:
        return "the path must not contain '.', '..', '//' or '%'"
    for dialect in DIALECTS:
        if parts.path.rstrip("/").endswith(dialect.upstream_path):
            return f"must end before {dialect.upstream_path}: the proxy appends it"
    return None
