"""The dialects of Google's own models: generateContent, streamGenerateContent, countTokens and embedContent.

Invariants: only the paths differ from Gemini's. The project and the location in a client's path are not read. Those of
a provider are in its base URL, which ends with `/projects/…/locations/…`, or in express mode, which has no projects,
with the version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.metering.dialect import NAME, Dialect, KeyHeader
from proxy.metering.dialects.gemini.embed import GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM

_VERSIONS = ("v1", "v1beta1")
_PLACE = "/projects/{project}/locations/{location}"


def publisher_paths(publisher: str, method: str, model: str = NAME) -> dict[str, Any]:
    """The paths of a method of this publisher's models."""
    path = f"/publishers/{publisher}/models/{model}:{method}"
    return {
        "paths": tuple(f"/{version}{place}{path}" for place in (_PLACE, "") for version in _VERSIONS),
        "appended": path,
        "key_header": KeyHeader.X_GOOG_API_KEY,
    }


VERTEX_ERRORS = replace(GEMINI_GENERATE.errors, prefix="/v1beta1/")


def _google(dialect: Dialect, method: str) -> Dialect:
    name = f"vertex.{dialect.name.partition('.')[2]}"
    return replace(dialect, name=name, errors=VERTEX_ERRORS, **publisher_paths("google", method))


VERTEX_GENERATE = _google(GEMINI_GENERATE, "generateContent")
VERTEX_STREAM = _google(GEMINI_STREAM, "streamGenerateContent")
VERTEX_COUNT = _google(GEMINI_COUNT_TOKENS, "countTokens")
VERTEX_EMBED = _google(GEMINI_EMBED, "embedContent")
