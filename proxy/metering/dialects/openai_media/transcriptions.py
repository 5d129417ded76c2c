"""The dialect audio/transcriptions: a file of audio in, its words out, as JSON, text, subtitles or a stream.

Rule: prompt = `usage.input_tokens`, of them audio = `input_token_details.audio_tokens`, completion =
`usage.output_tokens`, total = `usage.total_tokens`; where usage is a duration, audio = its `seconds`, else the answer's
own `duration`. Text and subtitles say nothing: then the words are counted, how long the audio is is guessed from the
file (a WAV's head tells its rate; what else there is, is taken for 128 kbit/s), and the entry has the flag
`audio_unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import count, usage_reader
from proxy.metering.dialect import Dialect, RequestBody
from proxy.metering.meter import JsonMeter
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import InvalidField, RequestFacts, Upload, model_of
from proxy.metering.tally import Counting
from proxy.metering.usage import NO_USAGE, PromptEvidence, Usage
from proxy.metering.wire.json_reader import reader
from proxy.metering.wire.text import chars_of

_BYTES_PER_S = 16_000
# A WAV's head: where its rate stands, in bytes per second, and between which rates it is believed.
_WAV_RATE, _WAV_RATE_MIN, _WAV_RATE_MAX = slice(28, 32), 1_000, 10_000_000


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    delta: str | None = None
    text: str | None = None
    usage: dict[str, Any] | None = None
    duration: float | None = None
    error: Any = None


_read = reader(_Event)


class TranscriptionTally(Counting):
    """The words of one answer, and what it says of the audio."""

    __slots__ = ()

    def read(self, event: bytes, name: bytes) -> object | None:
        """One event of a stream."""
        parsed = _read(event)
        if parsed is None:
            return None
        fragments = self.evidence.text_events > 0  # came before: a whole text repeats them
        if parsed.error or name == b"error" or parsed.type == "error":
            self.fail("error_event")
        elif parsed.type == "transcript.text.done":
            self.done = True
            self._add_texts(None if fragments else parsed.text)
            self._read_usage(parsed)
        elif parsed.type == "transcript.text.delta" or not fragments:
            self._add_texts(parsed.delta or parsed.text)
        return parsed

    def read_answer(self, body: bytes) -> bool:
        """One whole answer: JSON, or words as they are."""
        parsed = _read(body)
        if parsed is None:
            self._add_texts(body.decode("utf-8", "replace"))
            self.flags.add("audio_unknown")
        elif parsed.error:
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


_tokens = usage_reader(
    prompt_tokens="input_tokens",
    completion_tokens="output_tokens",
    total_tokens="total_tokens",
    audio_prompt_tokens="input_token_details.audio_tokens",
)


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is no count."""
    usage, seconds = _tokens(raw), raw.get("seconds")
    try:
        audio_ms = count(round(seconds * 1000) if isinstance(seconds, int | float) else seconds)
    except (ValueError, OverflowError):
        return None
    return usage and structs.replace(usage, audio_ms=audio_ms)


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Reads a form. Raises InvalidField."""
    file, prompt = document.get("file"), document.get("prompt", "")
    if not isinstance(file, Upload):
        raise InvalidField("file", "must be a file")
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a text")
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
    words = {"true": True, "false": False, "": False}
    parsed = document.get(name, "")
    if not isinstance(parsed, str) or parsed.lower() not in words:
        raise InvalidField(name, "must be true or false")
    return words[parsed.lower()]


def _length_ms(audio: bytes) -> int:
    rate = _BYTES_PER_S
    if audio.startswith(b"RIFF") and audio[8:16] == b"WAVEfmt ":
        told = int.from_bytes(audio[_WAV_RATE], "little")
        rate = told if _WAV_RATE_MIN <= told <= _WAV_RATE_MAX else rate
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
