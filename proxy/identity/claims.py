"""Values of claims. Invariant: an e-mail address that the identity provider has not verified is no value: at some
providers, users may enter any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def claim_values(claims: Mapping[str, Any], name: str) -> list[str]:
    """The texts of a claim; of `a.b`, those of the member `b` of `a`. Numbers and booleans as JSON writes them."""
    if name == "email" and claims.get("email_verified") not in (True, "true"):
        return []
    value = _member(claims, name)
    values = value if isinstance(value, list) else [value]
    return [text for one in values if (text := _text(one)) is not None]


def _member(value: Any, path: str) -> Any:
    """The member of nested mappings; names may contain dots, as `kubernetes.io`. None: there is none."""
    if not isinstance(value, Mapping):
        return None
    if path in value:
        return value[path]
    parts = path.split(".")
    tried = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((_member(value[name], path[len(name) + 1 :]) for name in tried if name in value), None)


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int) else None
