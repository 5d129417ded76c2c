"""Runs scenarios one after the other and prints what each came to, a JSON line each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

QUESTION = "How much water goes over the weir?"
READ_TOKENS = 12
GATE = {"type": "object", "properties": {"by_cm": {"type": "integer"}}}
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
TOOLS: Any = [{"type": "function", "function": {"name": "open_gate", "parameters": GATE}}]

Report = dict[str, Any]
Scenario = Callable[[str, Report], object]


def usage(prompt: float, cached: float | None, completion: float) -> dict[str, int]:
    """In the ledger's words: the prompt includes what a cache gave."""
    return {"prompt_tokens": int(prompt), "cached_tokens": int(cached or 0), "completion_tokens": int(completion)}


def with_keys(client: Callable[[str], Any], plain: Callable[[Any, str, Report], object]) -> dict[str, Scenario]:
    """Plain requests with each key. `client`: the SDK with the key of this variable; `plain`: asks it for an answer."""

    def limited(model: str, told: Report) -> None:
        plain(client("KEY_LIMITED"), model, told)
        plain(client("KEY_LIMITED"), model, {})

    keys = {"plain": "KEY", "unknown_key": "KEY_UNKNOWN", "spent": "KEY_SPENT"}
    return {
        "limited": limited,
        **{name: lambda model, told, key=key: plain(client(key), model, told) for name, key in keys.items()},
    }


def run_all(scenarios: dict[str, Scenario], failure: Callable[[Exception], Report]) -> None:
    """`failure` says what an error of the SDK is."""
    for name, scenario in scenarios.items():
        told: Report = {"scenario": name}
        try:
            scenario(os.environ["MODELS"] + name, told)
        except Exception as raised:
            told["error"] = {"type": type(raised).__name__, "message": str(raised), **failure(raised)}
        print(json.dumps(told), flush=True)
