"""The dialects of images: generations, edits and variations; whole images, or a stream of partial ones.

Usage: prompt = `usage.input_tokens`, completion = `usage.output_tokens`, total = `usage.total_tokens`. If no tokens are
reported, images = those in `data`, or the completed ones of a stream. Invariants: no image is decoded. A stream of
several completed images has the last usage, never lower. Edits are asked for by a form with files or, as xAI has them,
by JSON with links; a form's fields are strings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import of_medium
from proxy.metering.dialect import Dialect, RequestBody
from proxy.metering.dialects.openai.inputs import Inputs
from proxy.metering.plain import skimmed
from proxy.metering.request import InvalidField, RequestFacts, Upload, flag, integer, model_of, uploads_in
from proxy.metering.tally import Tally, says_error
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import UNITS_MAX, PromptEvidence, Usage
from proxy.metering.usage_reader import openai_usage_of
from proxy.metering.wire.framing import LONG_SSE
from proxy.metering.wire.json_reader import reader

# Far above the limits of all known providers.
N_MAX = 128
# Tokens of one square image of OpenAI's first such model: a guess for all others.
_TOKENS = {"low": 272, "medium": 1056, "high": 4160}
# Parts of counts that are read; the cost that xAI states.
_NOT_BILLED = "output_tokens_details.text_tokens input_tokens_details.text_tokens cost_in_usd_ticks"


class _ImagesEvent(msgspec.Struct, gc=False):
    type: str | None = None
    images: list[Any] | None = msgspec.field(default=None, name="data")
    usage: dict[str, Any] | None = None
    error: Any = None


_read = reader(_ImagesEvent)


class ImagesTally(Tally):
    """The counts of one answer or stream."""

    __slots__ = ("_images",)

    known = members(
        "data created created_at partial_image_index output_compression",
        each("usage", f"{openai_usage_of.paths} {_NOT_BILLED}"),
    )

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._images: int | None = None  # completed images; None: unknown

    def read(self, event: bytes, name: bytes) -> object | None:
        parsed = _read(event)
        if parsed is None:
            return None
        kind = parsed.type or name.decode("ascii", "replace")
        if says_error(parsed.error) or kind == "error":
            self.fail("error_event")
        elif kind.endswith(".completed"):
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
        usage = of_medium(openai_usage_of(raw or {}, self.flags), "image_completion_tokens")
        without_tokens = self.usage is None or self.usage.in_other_units
        if not usage.reported_nothing:
            self.usage = None if without_tokens else self.usage
            self._report(raw, usage)
        elif self._images is not None and without_tokens:
            self.usage = Usage(images=min(self._images, UNITS_MAX))
        self.usage_raw = raw or self.usage_raw


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    prompt = document.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a string")
    return _facts(document, named or model_of(document), Inputs(1, (prompt,)).evidence())


def edit_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request to edit images. Raises InvalidField."""
    given = _given(document)
    if not given:
        raise InvalidField("image", "must be a file, or image or images with links")
    read = facts(_typed(document), named)
    return structs.replace(read, prompt=structs.replace(read.prompt, images=given))


def variation_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a form for variations of one image; its model is optional. Raises InvalidField."""
    if not isinstance(document.get("image"), Upload):
        raise InvalidField("image", "must be a file")
    # OpenAI's default, and its only model for variations; its SDKs leave the model out.
    model = "dall-e-2" if document.get("model") is None else model_of(document)
    return _facts(_typed(document), named or model, PromptEvidence(images=1))


def _facts(document: dict[str, Any], model: str, prompt: PromptEvidence) -> RequestFacts:
    images = integer(document, "n", at_most=N_MAX) or 1
    tokens = _TOKENS.get(str(document.get("quality")), _TOKENS["medium"])
    return RequestFacts(
        model=model,
        streamed=flag(document, "stream"),
        completion_tokens_max=None,
        n=images,
        prompt=prompt,
        asked=Usage(images=images, completion_tokens=images * tokens),
    )


def _given(document: dict[str, Any]) -> int:
    """The images of a request: files or, in JSON, objects."""
    one, several = document.get("image"), document.get("images")
    linked = several if isinstance(several, list) else (one,)
    return uploads_in(document) or sum(isinstance(image, dict) for image in linked)


def _typed(document: dict[str, Any]) -> dict[str, Any]:
    """A form's fields with JSON types. A value that is no number or boolean stays a string, and is refused later."""
    read = {**document}
    if isinstance(n := read.get("n"), str) and n.isascii() and n.isdecimal():
        read["n"] = int(n[:9])  # more digits than N_MAX
    if isinstance(stream := read.get("stream"), str):
        read["stream"] = {"true": True, "false": False, "": None}.get(stream.lower(), stream)
    return read


OPENAI_IMAGES = Dialect(
    name="openai.images",
    paths=("/v1/images/generations",),
    operation="image_generation",
    facts=facts,
    tally=ImagesTally,
    framings=(LONG_SSE,),
    plain=skimmed(ImagesTally),
)

OPENAI_IMAGE_EDITS = replace(
    OPENAI_IMAGES,
    name="openai.image_edits",
    paths=("/v1/images/edits",),
    facts=edit_facts,
    request_body=RequestBody.EITHER,
)

OPENAI_IMAGE_VARIATIONS = replace(
    OPENAI_IMAGES,
    name="openai.image_variations",
    paths=("/v1/images/variations",),
    facts=variation_facts,
    request_body=RequestBody.MULTIPART,
)
