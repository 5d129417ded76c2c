"""The SDKs of both families, as fixtures give them: called with the name of a key, and perhaps a proxy's URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tests.support.sdks import anthropic, openai

OpenAiSdk: TypeAlias = Callable[..., "openai.AsyncOpenAI"]
AnthropicSdk: TypeAlias = Callable[..., "anthropic.AsyncAnthropic"]
