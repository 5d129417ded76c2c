"""Recorded answers of Gemini, and what is known to be wrong in them."""

from __future__ import annotations

from typing import Any

UNFINISHED = "lmnr-ai/lmnr-ts/packages/lmnr/test/recordings/google-genai-creates-a-streaming-genai-span.json#0"


def exception(record: dict[str, Any]) -> str | None:
    """Why the truth of a record is not what it used."""
    if record["id"] == UNFINISHED:
        return "unfinished"
    return "tools" if (record["truth"] or {}).get("tool_use_prompt_tokens") else None
