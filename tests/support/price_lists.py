"""Price lists in the format of genai-prices, as small as a test needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def listed(name: str, prices: Any, match: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A model in a list."""
    return {"id": name, "match": match or {"equals": name}, "prices": prices}


def price_list(*models: dict[str, Any], provider: str = "lister", at: str = "https://lister/") -> bytes:
    """A list with one provider. `at`: the beginning of its URLs."""
    return json.dumps([{"id": provider, "name": provider, "api_pattern": at, "models": list(models)}]).encode()
