"""The SDKs of both families, as fixtures give them: called with the name of a key, and perhaps a proxy's URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

OpenAiSdk: TypeAlias = Callable[..., AsyncOpenAI]
AnthropicSdk: TypeAlias = Callable[..., AsyncAnthropic]
