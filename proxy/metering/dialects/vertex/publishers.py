"""The dialects of Google's own models (as Gemini's, and predict: the vectors of text embedding models, and images of
Imagen), and of rawPredict and streamRawPredict (Anthropic's messages, and Mistral's chat).

The project and the location in a client's path are not read. Those of a provider are in its base URL, which ends with
`/projects/…/locations/…`, or in express mode, which has no projects, with the version. Of generateContent,
streamGenerateContent, countTokens and embedContent, only the paths differ from Gemini's.

Invariants of predict: no vector and no image is decoded. Usage of vectors: the prompt is the sum of what each
prediction counts; nothing is generated. Usage of images: their number.
https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference

Of rawPredict, tallies, rewriting and errors are the publisher's own. The model is that of the path; Anthropic's body
has none. Counting tokens has a path of its own, and a model in its body.
https://platform.claude.com/docs/en/build-with-claude/claude-on-vertex-ai
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import with_total
from proxy.metering.dialect import NAME, Dialect, Facts, KeyHeader
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_COUNT_TOKENS, ANTHROPIC_MESSAGES
from proxy.metering.dialects.gemini.embed import GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.plain import nothing_generated, plain_dialect
from proxy.metering.request import (
    InvalidField,
    RequestFacts,
    counted,
    integer,
    messages_of,
    with_model,
    with_model_if_named,
)
from proxy.metering.tally import Tally, says_error
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import NO_USAGE, UNITS_MAX, PromptEvidence, Usage
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.json_reader import reader

_VERSIONS = ("v1", "v1beta1")
_PLACE = "/projects/{project}/locations/{location}"


def _of_publisher(publisher: str, method: str, model: str = NAME) -> dict[str, Any]:
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
    return replace(dialect, name=name, errors=VERTEX_ERRORS, **_of_publisher("google", method))


VERTEX_GENERATE = _google(GEMINI_GENERATE, "generateContent")
VERTEX_STREAM = _google(GEMINI_STREAM, "streamGenerateContent")


def _streaming(facts: Facts) -> Facts:
    """`facts` of a stream: the path requests one, whatever the body has."""

    def read(document: dict[str, Any], named: str | None = None) -> RequestFacts:
        return structs.replace(facts(document, named), streamed=True)

    return read


def _raw(dialect: Dialect, publisher: str, **more: Any) -> tuple[Dialect, Dialect]:
    """The dialects of both methods."""
    plain = replace(dialect, name=f"vertex.{publisher}", **_of_publisher(publisher, "rawPredict"), **more)
    streamed = replace(
        plain,
        name=f"vertex.{publisher}_stream",
        facts=_streaming(plain.facts),
        **_of_publisher(publisher, "streamRawPredict"),
    )
    return plain, streamed


VERTEX_ANTHROPIC, VERTEX_ANTHROPIC_STREAM = _raw(
    ANTHROPIC_MESSAGES, "anthropic", upstream_document=with_model_if_named, headers_up=("anthropic-beta",), query=()
)
# Its streams end with the usage, asked for or not.
VERTEX_MISTRAL, VERTEX_MISTRAL_STREAM = _raw(OPENAI_CHAT, "mistralai", upstream_document=with_model, stripper=None)
VERTEX_ANTHROPIC_COUNT = replace(
    ANTHROPIC_COUNT_TOKENS,
    name="vertex.anthropic_count_tokens",
    **_of_publisher("anthropic", "rawPredict", "count-tokens"),
    upstream_document=with_model,
    headers_up=("anthropic-beta",),
    query=(),
)


# Imagen makes fewer at once; without a number in the request, four.
_IMAGES_MAX, _IMAGES = 16, 4


class _Statistics(msgspec.Struct, gc=False):
    token_count: int | float | None = None


class _Embeddings(msgspec.Struct, gc=False):
    statistics: _Statistics | None = None


class _Prediction(msgspec.Struct, gc=False):
    embeddings: _Embeddings | None = None
    mime_type: str | None = msgspec.field(default=None, name="mimeType")
    """type of an image"""


class _PredictAnswer(msgspec.Struct, gc=False):
    predictions: list[_Prediction] | None = None
    usage: dict[str, Any] | None = None
    """counts of an entry that is read again"""
    error: Any = None


_answer_of = reader(_PredictAnswer)
_counted = UsageReader(prompt_tokens="token_count", images="images")


class PredictTally(Tally):
    """The usage of one answer."""

    __slots__ = ()

    # Characters are what some of these models were billed by; the lists say tokens.
    known = members(
        "predictions deployedModelId model modelDisplayName modelVersionId error metadata",
        each("usage", _counted.paths),
    )

    def read_answer(self, body: bytes) -> bool:
        answer = _answer_of(body)
        if answer is None:
            return False
        if says_error(answer.error):
            self.fail("error_body")
            return True
        self.done = True
        if counts := answer.usage or _counts(answer.predictions or []):
            usage = nothing_generated(_counted(counts, self.flags))
            self._report(counts, with_total(usage) if usage.images is None else usage)
        return True


def _counts(predictions: list[_Prediction]) -> dict[str, Any]:
    """The counts of all predictions; empty: there are none."""
    statistics = [one.embeddings.statistics for one in predictions if one.embeddings is not None]
    tokens = [one.token_count for one in statistics if one is not None and one.token_count is not None]
    if tokens:
        return {"token_count": sum(tokens)}
    images = sum(one.mime_type is not None for one in predictions)
    return {"images": min(images, UNITS_MAX)} if images else {}


def _prompt(document: dict[str, Any]) -> PromptEvidence:
    instances = messages_of(document, "instances")
    (latin, wide, other, blanks, marks, *_), _ = counted([_text(one, at) for at, one in enumerate(instances)])
    return PromptEvidence(len(instances), latin, wide, other, blanks=blanks, marks=marks)


def _asked(document: dict[str, Any]) -> Usage:
    """The images of a valid request."""
    instances, parameters = document["instances"], document.get("parameters")
    if not any("prompt" in one for one in instances):
        return NO_USAGE
    given = parameters if isinstance(parameters, dict) else {}
    count = integer(given, "sampleCount", "parameters.sampleCount", at_most=_IMAGES_MAX) or _IMAGES
    return Usage(images=len(instances) * count)


def _text(instance: Mapping[str, Any], at: int) -> str:
    for name in ("content", "prompt"):
        if isinstance(text := instance.get(name), str):
            return text
    raise InvalidField(f"instances[{at}]", "must have a text in content (embeddings) or in prompt (images)")


VERTEX_PREDICT = plain_dialect(
    GEMINI_GENERATE,
    name="vertex.predict",
    operation="embeddings",
    errors=VERTEX_ERRORS,
    prompt=_prompt,
    asked=_asked,
    tally=PredictTally,
    reads_lists=True,
    usage_member="usage",
    upstream_document=lambda document, upstream_model, inject_usage: {**document},
    **_of_publisher("google", "predict"),
)

VERTEX = (
    VERTEX_GENERATE,
    VERTEX_STREAM,
    _google(GEMINI_COUNT_TOKENS, "countTokens"),
    _google(GEMINI_EMBED, "embedContent"),
    VERTEX_PREDICT,
    VERTEX_ANTHROPIC_COUNT,  # its path is one of the next ones, with a model of that name
    VERTEX_ANTHROPIC,
    VERTEX_ANTHROPIC_STREAM,
    VERTEX_MISTRAL,
    VERTEX_MISTRAL_STREAM,
)
