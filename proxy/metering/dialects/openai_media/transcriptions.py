"""The dialects of audio/transcriptions and audio/translations: speech to text, as JSON, text, subtitles or a stream.

Usage: prompt = `usage.input_tokens`, with audio = `input_token_details.audio_tokens`; completion =
`usage.output_tokens`; total = `usage.total_tokens`. If usage is a duration, audio = its `seconds`, else the `duration`
of the answer. Mistral has the names of chat, both tokens and `prompt_audio_seconds`, and events of its own; audio that
has a price by time has none by token. https://docs.mistral.ai/api/endpoint/audio/transcriptions

Text and subtitles have no usage: then the text is counted, the length of the audio is that of the file
(`audio.length`), and the entry has the flag `audio_unknown`; with `audio_doubtful`, it is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.audio.length import UNSEEN, length_of
from proxy.metering.counts import with_audio
from proxy.metering.dialect import Dialect, RequestBody
from proxy.metering.meter import JsonMeter
from proxy.metering.request import InvalidField, RequestFacts, Upload, model_of
from proxy.metering.tally import Tally, says_error
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import NO_USAGE, PromptEvidence, Usage
from proxy.metering.usage_reader import openai_usage_of
from proxy.metering.wire.json_reader import reader
from proxy.metering.wire.text import chars_of

# What may be in place of a file: of Mistral, and of Groq.
_LINKS = ("file_url", "file_id", "url")


class _TranscriptionEvent(msgspec.Struct, gc=False):
    type: str | None = None
    delta: str | None = None
    text: str | None = None
    usage: dict[str, Any] | None = None
    duration: float | None = None
    error: Any = None


_read = reader(_TranscriptionEvent)


_TIMES = "seconds prompt_audio_seconds"
# OpenAI's and Mistral's events with a fragment of the text, and with all of it. Others have a segment of it.
_FRAGMENTS = frozenset({"transcript.text.delta", "transcription.text.delta"})
_LAST = frozenset({"transcript.text.done", "transcription.done"})


class TranscriptionTally(Tally):
    """The counts of one answer."""

    __slots__ = ("_in_fragments",)

    known = members(
        "segments words logprobs duration",
        each("usage", f"{openai_usage_of.paths} {_TIMES} type service_tier input_token_details.text_tokens"),
    )

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._in_fragments = False  # the segments repeat them

    def read(self, event: bytes, name: bytes) -> object | None:
        parsed = _read(event)
        if parsed is None:
            return None
        kind = parsed.type or name.decode("ascii", "replace")
        if says_error(parsed.error) or kind == "error" or name == b"error":
            self.fail("error_event")
        elif kind in _LAST:
            self.done = True
            self._add_texts(None if self.evidence.text_events else parsed.text)  # it repeats them
            self._read_usage(parsed)
        elif kind in _FRAGMENTS or not self._in_fragments:
            self._in_fragments = self._in_fragments or kind in _FRAGMENTS
            self._add_texts(parsed.delta or parsed.text)
        return parsed

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer: JSON, or plain text. False: it is JSON that cannot be read."""
        parsed = _read(body)
        if parsed is None and body.startswith(b"{") and body[1:].lstrip()[:1] in (b"", b'"'):
            return False  # JSON that was cut
        if parsed is None:
            self._add_texts(body.decode("utf-8", "replace"))
            self.flags.add("audio_unknown")
        elif says_error(parsed.error):
            self.fail("error_body")
            return True
        else:
            self._add_texts(parsed.text)
            self._read_usage(parsed)
        self.done = True
        return True

    def _read_usage(self, parsed: _TranscriptionEvent) -> None:
        usage = usage_of(parsed.usage or {"seconds": parsed.duration}, self.flags)
        if usage == NO_USAGE:
            self.flags.add("audio_unknown")
        self._report(parsed.usage, usage)


def usage_of(raw: dict[str, Any], flags: set[str]) -> Usage:
    """The counts in `raw`; flags invalid counts."""
    times = [time for name in _TIMES.split() if (time := raw.get(name)) is not None]
    return with_audio(openai_usage_of(raw, flags), times[0] if times else None, flags)


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a form. Raises InvalidField."""
    prompt = document.get("prompt", "")
    links = [link for name in _LINKS if isinstance(link := document.get(name), str) and link]
    if not isinstance(document.get("file"), Upload) and not links:
        raise InvalidField("file", "must be a file")
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a string")
    latin, wide, other, *_ = chars_of(prompt)
    return RequestFacts(
        model=named or model_of(document),
        streamed=_flag(document, "stream"),
        completion_tokens_max=None,
        prompt=PromptEvidence(chars_latin=latin, chars_wide=wide, chars_other=other, attachments=1),
    )


def measured(facts: RequestFacts, document: dict[str, Any]) -> RequestFacts:
    """`facts` with the length of the audio."""
    file = document.get("file")
    length = length_of(file.content) if isinstance(file, Upload) else UNSEEN
    doubts = ("audio_doubtful",) if length.doubtful else ()
    return structs.replace(facts, asked=Usage(audio_ms=length.ms), doubts=doubts)


def _flag(document: Mapping[str, Any], name: str) -> bool:
    values = {"true": True, "false": False, "": False}
    value = document.get(name, "")
    if not isinstance(value, str) or value.lower() not in values:
        raise InvalidField(name, "must be true or false")
    return values[value.lower()]


OPENAI_TRANSCRIPTIONS = Dialect(
    name="openai.transcriptions",
    paths=("/v1/audio/transcriptions",),
    operation="transcription",
    facts=facts,
    measured=measured,
    tally=TranscriptionTally,
    plain=lambda: JsonMeter(TranscriptionTally),
    request_body=RequestBody.MULTIPART,
    accepts="*/*",
)

OPENAI_TRANSLATIONS = replace(
    OPENAI_TRANSCRIPTIONS,
    name="openai.translations",
    paths=("/v1/audio/translations",),
    operation="translation",
)
