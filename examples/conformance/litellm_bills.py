"""A callback of LiteLLM: writes what it would bill to the file $BILLS, one JSON object a line.

It also gives prices to the models that LiteLLM looks up in its own list only: of a stream of Gemini's own API, of fast
mode, and of a picture.
"""

import json
import os
from pathlib import Path
from typing import Any

import litellm
from litellm.integrations.custom_logger import CustomLogger

PRICE = {
    "mode": "chat",
    "input_cost_per_token": 2e-6,
    "output_cost_per_token": 8e-6,
    "cache_read_input_token_cost": 5e-7,
    "cache_creation_input_token_cost": 2.5e-6,
}
GEMINI = {
    f"gemini/gemini-{name}": {**PRICE, "litellm_provider": "gemini"} for name in ("stream", "thoughts", "client-leaves")
}
FAST = {**PRICE, "litellm_provider": "anthropic", "provider_specific_entry": {"fast": 6.0}}
IMAGES = {"input_cost_per_token": 5e-6, "output_cost_per_token": 4e-5, "litellm_provider": "openai"}
litellm.register_model({**GEMINI, "anthropic/anthropic-fast": FAST, "conformance-images": IMAGES})


class Bills(CustomLogger):
    """Failed exchanges are written as well: they cost what they generated."""

    async def async_log_success_event(self, kwargs: dict[str, Any], *_: Any, **__: Any) -> None:
        self._write(kwargs["standard_logging_object"])

    async def async_log_failure_event(self, kwargs: dict[str, Any], *_: Any, **__: Any) -> None:
        self._write(kwargs["standard_logging_object"])

    def _write(self, logged: dict[str, Any]) -> None:
        bill = {
            "model": logged.get("model_group") or logged["model"],
            "prompt_tokens": logged["prompt_tokens"],
            "completion_tokens": logged["completion_tokens"],
            "cost_usd": logged["response_cost"],
        }
        with Path(os.environ["BILLS"]).open("a") as file:
            file.write(json.dumps(bill) + "\n")


bills = Bills()
