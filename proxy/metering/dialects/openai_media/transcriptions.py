"""The dialects of audio/transcriptions and audio/translations: speech to text, as JSON, text, subtitles or a stream.

Usage: prompt = `usage.input_tokens`, with audio = `input_token_details.audio_tokens`; completion =
`usage.output_tokens`; total = `usage.total_tokens`. If usage is a duration, audio = its `seconds`, else the `duration`
of the answer. Text and subtitles have no usage: then the text is counted, the length of the audio is estimated from the
file (by the rate in a WAV header, else as 128 kbit/s), and the entry has the flag `audio_unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import UsageReader, count
from proxy.metering.dialect import Dialect, RequestBody
from proxy.metering.meter import JsonMeter
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import InvalidField, RequestFacts, Upload, model_of
from proxy.metering.tally import Counting, says_error
from proxy.metering.unread import each, members
from proxy.metering.usage import NO_USAGE, PromptEvidence, Usage
from proxy.metering.wire.json_reader import reader
from proxy.metering.wire.text import chars_of

_BYTES_PER_S = 16_000
# The rate in a WAV header, in bytes per second, and its plausible range.
_WAV_RATE, _WAV_RATE_MIN, _WAV_RATE_MAX = slice(28, 32), 1_000, 10_000_000


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    delta: str | None = None
    text: str | None = None
    usage: dict[str, Any] | None = None
    duration: float | None = None
    error: Any = None


_read = reader(_Event)


_tokens = UsageReader(
    prompt_tokens="input_tokens",
    completion_tokens="output_tokens",
    total_tokens="total_tokens",
    audio_prompt_tokens="input_token_details.audio_tokens",
)


class TranscriptionTally(Counting):
    """The counts of one answer."""

    __slots__ = ()

    known = members(
        "segments words logprobs duration",
        each("usage", f"{_tokens.paths} type seconds input_token_details.text_tokens"),
    )

    def read(self, event: bytes, name: bytes) -> object | None:
        """Read one event of a stream."""
        parsed = _read(event)
        if parsed is None:
            return None
        kind = parsed.type or name.decode("ascii", "replace")
        fragments = self.evidence.text_events > 0  # a later whole text repeats them
        if says_error(parsed.error) or kind == "error" or name == b"error":
            self.fail("error_event")
        elif kind == "transcript.text.done":
            self.done = True
            self._add_texts(None if fragments else parsed.text)
            self._read_usage(parsed)
        elif kind == "transcript.text.delta" or not fragments:
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

    def _read_usage(self, parsed: _Event) -> None:
        usage = usage_of(parsed.usage or {"seconds": parsed.duration})
        if usage == NO_USAGE:
            self.flags.add("audio_unknown")
        self._report(parsed.usage, usage)


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is invalid."""
    usage, seconds = _tokens(raw), raw.get("seconds")
    try:
        audio_ms = count(round(seconds * 1000) if isinstance(seconds, int | float) else seconds)
    except (ValueError, OverflowError):
        return None
    return usage and structs.replace(usage, audio_ms=audio_ms)


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a form. Raises InvalidField."""
    file, prompt = document.get("file"), document.get("prompt", "")
    if not isinstance(file, Upload):
        raise InvalidField("file", "must be a file")
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a string")
    latin, wide, other, *_ = chars_of(prompt)
    return RequestFacts(
        model=named or model_of(document),
        streamed=_flag(document, "stream"),
        usage_asked=True,
        completion_tokens_max=None,
        n=1,
        prompt=PromptEvidence(chars_latin=latin, chars_wide=wide, chars_other=other, attachments=1),
        asked=Usage(audio_ms=_length_ms(file.content)),
    )


def _flag(document: Mapping[str, Any], name: str) -> bool:
    values = {"true": True, "false": False, "": False}
    value = document.get(name, "")
    if not isinstance(value, str) or value.lower() not in values:
        raise InvalidField(name, "must be true or false")
    return values[value.lower()]


def _length_ms(audio: bytes) -> int:
    rate = _BYTES_PER_S
    if audio.startswith(b"RIFF") and audio[8:16] == b"WAVEfmt ":
        wav_rate = int.from_bytes(audio[_WAV_RATE], "little")
        rate = wav_rate if _WAV_RATE_MIN <= wav_rate <= _WAV_RATE_MAX else rate
    return len(audio) * 1000 // rate


OPENAI_TRANSCRIPTIONS = Dialect(
    name="openai.transcriptions",
    paths=("/v1/audio/transcriptions",),
    upstream_path="/audio/transcriptions",
    operation="transcription",
    facts=facts,
    tally=TranscriptionTally,
    errors=OPENAI_ERRORS,
    plain=lambda: JsonMeter(TranscriptionTally),
    request_body=RequestBody.MULTIPART,
    accepts="*/*",
)

OPENAI_TRANSLATIONS = replace(
    OPENAI_TRANSCRIPTIONS,
    name="openai.translations",
    paths=("/v1/audio/translations",),
    upstream_path="/audio/translations",
    operation="translation",
)
