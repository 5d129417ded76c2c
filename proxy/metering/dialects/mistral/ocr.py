"""The dialect of Mistral's OCR: documents and images → pages of text.

Usage: pages = `usage_info.pages_processed`, else those of the answer; annotated pages = all of them, if the answer has
an annotation, of the document or of an image in it: they have a price of their own. Invariants: nothing is streamed. A
request that does not say its pages is reserved as PAGES, which is also the estimate if the answer is lost.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.dialects.mistral.completions import MISTRAL_FIM
from proxy.metering.plain import plain_dialect
from proxy.metering.refusal import ErrorShape
from proxy.metering.request import InvalidField
from proxy.metering.tally import Tally, says_error
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import UNITS_MAX, PromptEvidence, Usage
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.json_reader import ENTRIES_MAX, reader

PAGES = 10
"""pages of a document of unknown length: a guess"""
_ANNOTATIONS = ("document_annotation_format", "bbox_annotation_format")
_DOCUMENTS = ("document_url", "image_url", "file", "file_id")
_reported = UsageReader(pages="pages_processed")


class _Image(msgspec.Struct, gc=False):
    annotation: Any = msgspec.field(default=None, name="image_annotation")


class _Page(msgspec.Struct, gc=False):
    images: list[_Image] | None = None


class _OcrAnswer(msgspec.Struct, gc=False):
    pages: list[_Page] | None = None
    annotation: Any = msgspec.field(default=None, name="document_annotation")
    usage: dict[str, Any] | None = msgspec.field(default=None, name="usage_info")
    object: str | None = None
    error: Any = None

    @property
    def annotated(self) -> bool:
        """Whether structured data was made from the document, or from an image in it."""
        images = (image for page in self.pages or () for image in page.images or ())
        return self.annotation is not None or any(image.annotation is not None for image in images)


# An entry is only looked at: a page, or an image on it.
_read = reader(_OcrAnswer, 32 * ENTRIES_MAX)


class OcrTally(Tally):
    """The counts of one answer."""

    __slots__ = ()

    known = members("pages model document_annotation object", each("usage_info", f"{_reported.paths} doc_size_bytes"))

    def read_answer(self, body: bytes) -> bool:
        answer = _read(body)
        if answer is None:
            return False
        if says_error(answer.error) or answer.object == "error":
            self.fail("error_body")
            return True
        self.done = True
        raw = answer.usage or {}
        usage = _reported(raw, self.flags)
        if usage.pages is None and answer.pages is not None:
            usage = Usage(pages=min(len(answer.pages), UNITS_MAX))
        if usage.pages is not None and answer.annotated:
            usage = structs.replace(usage, annotated_pages=usage.pages)
        self._report(raw or None, usage)
        return True


def _asked(document: dict[str, Any]) -> Usage:
    given = document.get("document")
    if not isinstance(given, dict) or not any(given.get(name) for name in _DOCUMENTS):
        raise InvalidField("document", "must be an object with a document_url, an image_url or a file_id")
    named = document.get("pages")  # a text of numbers and ranges (`0-5,9`) counts as PAGES
    of_document = min(len(named), UNITS_MAX) if isinstance(named, list) and named else PAGES
    pages = 1 if given.get("image_url") else of_document
    annotated = pages if any(document.get(name) for name in _ANNOTATIONS) else None
    return Usage(prompt_tokens=0, completion_tokens=0, pages=pages, annotated_pages=annotated)


MISTRAL_OCR = plain_dialect(
    MISTRAL_FIM,
    name="mistral.ocr",
    paths=("/v1/ocr",),
    operation="ocr",
    prompt=lambda document: PromptEvidence(),
    asked=_asked,
    tally=OcrTally,
    reads_lists=True,
    usage_member="usage_info",
    errors=ErrorShape("/v1/ocr", MISTRAL_FIM.errors.body, MISTRAL_FIM.errors.event_body),
)
