"""OpenRouter's `usage: {"include": true}` in a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.request import InvalidField, flag

MEMBER = "usage"
"""the member of the request; no other API has a member of this name"""


def cost_asked(document: Mapping[str, Any]) -> bool:
    """Whether the client requests the cost. Raises InvalidField."""
    options = document.get(MEMBER)
    if options is not None and not isinstance(options, dict):
        raise InvalidField(MEMBER, "must be an object")
    return flag(options or {}, "include", f"{MEMBER}.include")
