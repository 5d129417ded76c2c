"""The facts of a bill, from an answer's bytes to money at the built-in book's prices. Each row is a documented shape
with its source, and what the provider charges for it by its own price list."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from proxy.billing.money import nusd_from_usd
from proxy.billing.prices import PriceBook, charge
from proxy.billing.record import BillableParts
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES

AT = 1_790_000_000.0
GOOGLE, OPENAI = "https://generativelanguage.googleapis.com/v1beta", "https://api.openai.com/v1"
# https://ai.google.dev/gemini-api/docs/pricing: an image of 1024 × 1024 is 1,120 tokens at 120 USD per million.
IMAGE = {
    "candidates": [{"content": {"parts": [{"inlineData": {"mimeType": "image/png"}}]}, "finishReason": "STOP"}],
    "usageMetadata": {
        "promptTokenCount": 10, "candidatesTokenCount": 1120, "totalTokenCount": 1130,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1120}],
    },
}  # fmt: skip
# https://developers.openai.com/api/docs/pricing: searches in files cost 2.50 USD per thousand calls.
FILES = {
    "id": "r", "status": "completed",
    "output": [{"type": "file_search_call", "id": f"fs_{at}"} for at in range(3)],
    "usage": {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100},
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "base_url", "model", "answer", "usd"),
    [
        pytest.param(GEMINI_GENERATE, GOOGLE, "gemini-3-pro-image-preview", IMAGE, "0.13442", id="an image of Gemini"),
        pytest.param(OPENAI_RESPONSES, OPENAI, "gpt-4.1", FILES, "0.0103", id="searches in files"),
    ],
)
def test_an_answer_costs_what_its_provider_charges(
    dialect: Dialect, base_url: str, model: str, answer: dict[str, Any], usd: str
) -> None:
    meter = dialect.plain_meter()
    meter.feed(json.dumps(answer).encode())
    metered = meter.close()
    price = PriceBook().price(provider="p", base_url=base_url, model=model, at=AT)
    assert price is not None
    assert metered.usage is not None
    assert metered.unread.paths == ()
    charged = charge(price, metered.usage, BillableParts.EVERYTHING, metered.service_tier)
    assert charged == nusd_from_usd(Decimal(usd))
