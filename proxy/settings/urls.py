"""The base URL of a provider. Law: nothing in it that two parsers could read differently, and no secret."""

from __future__ import annotations

from urllib.parse import urlsplit

from proxy.metering.dialects import DIALECTS
from proxy.settings.kinds import VISIBLE, FieldPath, FieldType


def url() -> FieldType:
    """The base URL of a provider, without the slash at its end."""

    def read(raw: object, at: FieldPath) -> str:
        value = at.filled(raw) if isinstance(raw, str) else ""
        refused = _refused_url(value)
        if refused:
            raise at.wrong(refused)
        return value.rstrip("/")

    return FieldType("URL", read)


def _refused_url(value: str) -> str | None:
    """Why this is no base URL; None if it is one."""
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
        return "must hold no user name or password"
    if "?" in value or "#" in value:
        return "must have no query and no fragment"
    if {"..", "."} & set(parts.path.split("/")) or "//" in parts.path or "%" in parts.path:
        return "its path must be plain: no '..', no '//', no '%'"
    for dialect in DIALECTS:
        if parts.path.rstrip("/").endswith(dialect.upstream_path):
            return f"must be the part before {dialect.upstream_path}"
    return None
