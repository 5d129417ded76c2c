"""The dialects of Google's own models: generateContent, streamGenerateContent, countTokens and embedContent.

Invariant: only the paths differ from Gemini's.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.gemini.embed import GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.vertex.paths import publisher_paths

VERTEX_ERRORS = replace(GEMINI_GENERATE.errors, prefix="/v1beta1/")


def _google(dialect: Dialect, method: str) -> Dialect:
    name = f"vertex.{dialect.name.partition('.')[2]}"
    return replace(dialect, name=name, errors=VERTEX_ERRORS, **publisher_paths("google", method))


VERTEX_GENERATE = _google(GEMINI_GENERATE, "generateContent")
VERTEX_STREAM = _google(GEMINI_STREAM, "streamGenerateContent")
VERTEX_COUNT = _google(GEMINI_COUNT_TOKENS, "countTokens")
VERTEX_EMBED = _google(GEMINI_EMBED, "embedContent")
