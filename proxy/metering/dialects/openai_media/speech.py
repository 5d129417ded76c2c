"""The dialect of audio/speech: text to speech, as audio or as a stream of events with audio.

Usage: prompt = `usage.input_tokens`, completion = `usage.output_tokens`, all of it audio, from the last event of the
stream. Plain audio has no usage: then characters are those of the request's `input`, exactly, and tokens are estimated
from them, so that prices per character and per token both apply. Invariant: no audio is decoded or buffered.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.counts import of_medium
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.inputs import Inputs
from proxy.metering.metered import OpaqueMeter
from proxy.metering.request import InvalidField, RequestFacts, model_of
from proxy.metering.tally import Tally, says_error
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import Usage
from proxy.metering.usage_reader import openai_usage_of
from proxy.metering.wire.json_reader import reader
from proxy.metering.wire.text import chars_of

# Audio tokens per character: a minute has 1,250 tokens, and 900 Latin or 280 wide characters.
_TOKENS_PER_CHAR, _TOKENS_PER_WIDE = 1.4, 4.5


class _SpeechEvent(msgspec.Struct, gc=False):
    type: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_read = reader(_SpeechEvent)


class SpeechTally(Tally):
    """The counts of one stream."""

    __slots__ = ()

    known = members(each("usage", openai_usage_of.paths))

    def read(self, event: bytes, name: bytes) -> object | None:
        parsed = _read(event)
        if parsed is None:
            return None
        if says_error(parsed.error) or name == b"error" or parsed.type == "error":
            self.fail("error_event")
        elif (parsed.type or name.decode("ascii", "replace")) == "speech.audio.done":
            self.done = True
            usage = openai_usage_of(parsed.usage or {}, self.flags)
            self._report(parsed.usage, of_medium(usage, "audio_completion_tokens"))
        return parsed

    def read_answer(self, body: bytes) -> bool:
        """Read JSON instead of the requested stream: an error, or audio in a field."""
        parsed = _read(body)
        if parsed is None:
            return False
        if says_error(parsed.error):
            self.fail("error_body")
        else:
            self.done = True
        return True


class SpeechMeter(OpaqueMeter):
    """Meters plain audio by its bytes alone."""

    flags = ()

    def fold(self) -> None:
        """Does nothing: audio gives no evidence."""


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    text, form = document.get("input"), document.get("stream_format")
    if not isinstance(text, str):
        raise InvalidField("input", "must be a string")
    if form not in (None, "sse", "audio"):
        raise InvalidField("stream_format", "must be sse or audio")
    latin, wide, other, *_ = chars_of(text)
    tokens = round((latin + other) * _TOKENS_PER_CHAR + wide * _TOKENS_PER_WIDE)
    return RequestFacts(
        model=named or model_of(document),
        streamed=form == "sse",
        completion_tokens_max=None,
        prompt=Inputs(1, (text,)).evidence(document.get("instructions")),
        asked=Usage(characters=len(text), completion_tokens=tokens, audio_completion_tokens=tokens),
    )


OPENAI_SPEECH = Dialect(
    name="openai.speech",
    paths=("/v1/audio/speech",),
    operation="speech",
    facts=facts,
    tally=SpeechTally,
    plain=SpeechMeter,
    accepts="*/*",
)
