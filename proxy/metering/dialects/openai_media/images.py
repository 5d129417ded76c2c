"""The dialect of images/generations: whole images, or a stream of partial ones.

Usage: prompt = `usage.input_tokens`, completion = `usage.output_tokens`, total = `usage.total_tokens`. If no tokens are
reported, images = those in `data`, or the completed ones of a stream. Invariants: no image is decoded. A stream of
several completed images has the last usage, never lower.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.counts import UsageReader
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.inputs import Inputs
from proxy.metering.dialects.openai.plain import skimmed
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import InvalidField, RequestFacts, flag, integer, model_of
from proxy.metering.tally import Counting, says_error
from proxy.metering.unread import each, members
from proxy.metering.usage import UNITS_MAX, Usage
from proxy.metering.wire.framing import LONG_SSE
from proxy.metering.wire.json_reader import reader

# Far above the limits of all known providers.
N_MAX = 128
# Tokens of one square image of OpenAI's first such model: a guess for all others.
_TOKENS = {"low": 272, "medium": 1056, "high": 4160}
_COMPLETED = (".completed",)


tokens_of = UsageReader(
    prompt_tokens="input_tokens",
    completion_tokens="output_tokens",
    total_tokens="total_tokens",
    image_prompt_tokens="input_tokens_details.image_tokens",
    image_completion_tokens="output_tokens_details.image_tokens",
)
"""reads the usage of images and speech"""
# Parts of what is read; the cost as xAI states it.
_NOT_BILLED = "output_tokens_details.text_tokens input_tokens_details.text_tokens cost_in_usd_ticks"


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    images: list[Any] | None = msgspec.field(default=None, name="data")
    usage: dict[str, Any] | None = None
    error: Any = None


_read = reader(_Event)


class ImagesTally(Counting):
    """The counts of one answer or stream."""

    __slots__ = ("_images",)

    known = members(
        "data created created_at partial_image_index output_compression",
        each("usage", f"{tokens_of.paths} {_NOT_BILLED}"),
    )

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._images: int | None = None  # completed images; None: unknown

    def read(self, event: bytes, name: bytes) -> object | None:
        """Read one event of a stream."""
        parsed = _read(event)
        if parsed is None:
            return None
        kind = parsed.type or name.decode("ascii", "replace")
        if says_error(parsed.error) or kind == "error":
            self.fail("error_event")
        elif kind.endswith(_COMPLETED):
            self.finish_reason = "completed"
            self._images = (self._images or 0) + 1
            self._read_usage(parsed.usage)
        return parsed

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer, or one without the contents of its lists."""
        parsed = _read(body)
        if parsed is None:
            return False
        if says_error(parsed.error):
            self.fail("error_body")
        else:
            self.done = True
            self._images = None if parsed.images is None else len(parsed.images)
            self._read_usage(parsed.usage)
        return True

    def _read_usage(self, raw: dict[str, Any] | None) -> None:
        usage = tokens_of(raw or {})
        if usage is None or not usage.reported_nothing:
            self._report(raw, usage)
        elif self._images is not None:
            self.usage = Usage(images=min(self._images, UNITS_MAX))
        self.usage_raw = raw or self.usage_raw


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    prompt = document.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a string")
    images = integer(document, "n", at_most=N_MAX) or 1
    tokens = _TOKENS.get(str(document.get("quality")), _TOKENS["medium"])
    return RequestFacts(
        model=named or model_of(document),
        streamed=flag(document, "stream"),
        usage_asked=True,
        completion_tokens_max=None,
        n=images,
        prompt=Inputs(1, prompt).evidence(),
        asked=Usage(images=images, completion_tokens=images * tokens),
    )


OPENAI_IMAGES = Dialect(
    name="openai.images",
    paths=("/v1/images/generations",),
    upstream_path="/images/generations",
    operation="image_generation",
    facts=facts,
    tally=ImagesTally,
    errors=OPENAI_ERRORS,
    framings=(LONG_SSE,),
    plain=skimmed(ImagesTally),
)
