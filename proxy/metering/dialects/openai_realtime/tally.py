"""Events of Realtime → evidence, usage, finish reason: of a response, and of a transcription of the client's audio.

Invariants: generated output is counted once: from its deltas, or from the finished item without deltas. Audio is
counted in tokens by its length, as the provider bills it, until the usage is reported; the counts of the usage take
their place.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialects.openai_media.transcriptions import usage_of as usage_of_transcript
from proxy.metering.dialects.openai_realtime.wire import Item, RealtimeEvent, Response, event_of
from proxy.metering.tally import Tally, identifier, says_error, word
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import Usage
from proxy.metering.usage_reader import openai_usage_of
from proxy.metering.wire.json_reader import argument_text, document_of
from proxy.metering.wire.parts import is_crowded

# An assistant's audio is a token per 50 ms, a user's per 100 ms.
# https://developers.openai.com/api/docs/guides/realtime-costs
MS_PER_OUTPUT_TOKEN, MS_PER_PROMPT_TOKEN = 50, 100

_TEXT = """
input_token_details.text_tokens output_token_details.text_tokens input_token_details.cached_tokens_details.text_tokens
"""
_USAGE = each("usage", f"{openai_usage_of.paths} {_TEXT}")
_TRANSCRIPT = each("usage", "type seconds")
# The output is read by its items; the others repeat the session.
_RESPONSE = f"""
id object status status_details output conversation_id modalities output_modalities voice audio output_audio_format
temperature max_output_tokens max_response_output_tokens metadata {_USAGE}
"""


def usage_of(raw: dict[str, Any], flags: set[str]) -> Usage:
    """The counts in `raw`, of a response or of a transcription; flags invalid counts."""
    return (usage_of_transcript if "seconds" in raw or "type" in raw else openai_usage_of)(raw, flags)


# Brackets, quotes and commas of a usage in a ledger entry.
_MARKS_MAX = 8 << 10


class RealtimeTally(Tally):
    """The counts of one response. `bytes_per_s`: bytes per second of the response's audio."""

    __slots__ = ("_audio_bytes", "_bytes_per_s", "_is_reported", "_unknown", "_with_deltas")

    known = members(
        "type event_id item_id content_index output_index previous_item_id item transcript", _USAGE, _TRANSCRIPT,
        each("response", _RESPONSE),
    )  # fmt: skip

    def __init__(self, cumulative: bool | None = None, *, bytes_per_s: int = 48_000, unknown: bool = False) -> None:
        super().__init__(cumulative)
        self._bytes_per_s = bytes_per_s
        self._audio_bytes = 0
        self._is_reported = False
        self._with_deltas: set[int] = set()
        self._unknown = unknown
        if unknown:
            self.flags.add("unknown_event")

    def read(self, event: bytes, name: bytes) -> RealtimeEvent | None:
        parsed = event_of(event)
        if parsed is None:
            self.count_audio(len(event))  # a message that is no event is audio
            return None
        kind = parsed.type or ""
        if kind == "error":
            self.fail("error_event")
        elif isinstance(parsed.delta, str) and kind.endswith(".delta"):
            self._read_delta(kind, parsed.output_index or 0, parsed.delta)
        elif kind.endswith((".text.done", "_text.done", "transcript.done")):
            self._read_part(parsed)
        elif parsed.item is not None and kind == "response.output_item.added":
            self._read_call(parsed.output_index or 0, parsed.item)
        elif parsed.item is not None and kind == "response.output_item.done":
            self._read_item(parsed.output_index or 0, parsed.item)
        if parsed.response is not None:
            self._read_response(parsed.response, last=kind == "response.done")
        self._read_usage(parsed.usage)
        self.done = self.done or self._unknown
        return parsed

    def read_answer(self, body: bytes) -> bool:
        """Read a reported usage again, from a ledger entry."""
        document = None if is_crowded(body, _MARKS_MAX) else document_of(body)
        if not isinstance(document, dict):
            return False
        self.done = True
        raw = document.get("usage")
        self._read_usage(raw if isinstance(raw, dict) else None)
        return True

    def count_audio(self, size: int) -> None:
        """Count `size` bytes of generated audio."""
        if self._is_reported:
            return
        self._audio_bytes += size
        tokens = -(-self._audio_bytes * 1000 // (self._bytes_per_s * MS_PER_OUTPUT_TOKEN))
        self.usage = Usage(audio_completion_tokens=tokens)

    def _read_delta(self, kind: str, index: int, delta: str) -> None:
        if not delta:
            return
        if kind.endswith(("audio.delta", "audio_delta")):
            self.count_audio(len(delta) * 3 // 4 - delta.count("=", -2))
            return
        self._with_deltas.add(index)
        if "arguments" in kind or "_call" in kind:
            self.evidence.tool_events += 1
            self._called.append(delta)
        else:
            (self._reasonings if "reasoning" in kind else self._texts).append(delta)
            self.evidence.text_events += 1

    def _read_part(self, event: RealtimeEvent) -> None:
        """Read a finished text, which counts unless it had deltas."""
        index = event.output_index or 0
        if index not in self._with_deltas:
            self._with_deltas.add(index)
            self._add_texts(event.text or event.transcript)

    def _read_call(self, index: int, item: Item) -> None:
        if item.type in ("function_call", "mcp_call"):
            calls = self.evidence.tool_calls
            self._begin_call((index, "call"))
            if item.name and self.evidence.tool_calls > calls:
                self._called.append(item.name)

    def _read_item(self, index: int, item: Item) -> None:
        """Read a finished item, which counts unless it had deltas."""
        self._read_call(index, item)
        if index in self._with_deltas:
            return
        self._with_deltas.add(index)
        if item.arguments:
            self.evidence.tool_events += 1
            self._called.append(argument_text(item.arguments))
        self._add_texts("".join((part.text or "") + (part.transcript or "") for part in item.content or ()))

    def _read_response(self, response: Response, *, last: bool) -> None:
        self.response_id = self.response_id or identifier(response.id)
        if self._unknown:
            self._read_usage(response.usage)
        if not last:
            return
        for index, item in enumerate(response.output or ()):
            self._read_item(index, item)
        self._read_usage(response.usage)
        self.done = True
        details = response.status_details
        if response.status == "failed" or (details is not None and says_error(details.error)):
            self.fail("error_event")
        reason = (details.reason if details is not None else None) or response.status
        self.finish_reason = word(reason) if reason else None

    def _read_usage(self, raw: dict[str, Any] | None) -> None:
        if not raw:
            return
        usage = usage_of(raw, self.flags)
        if not usage.reported_nothing and not self._is_reported:
            self._is_reported, self.usage = True, None  # the reported usage replaces the count so far
        self._report(raw, usage)


class TranscriptTally(Tally):
    """The counts of one transcription. There are no whole answers."""

    __slots__ = ()

    known = members("type event_id item_id content_index logprobs languages transcript", _USAGE, _TRANSCRIPT)

    def read(self, event: bytes, name: bytes) -> RealtimeEvent | None:
        parsed = event_of(event)
        if parsed is None:
            return None
        kind = parsed.type or ""
        fragments = self.evidence.text_events > 0  # a later whole text repeats them
        if kind.endswith(".failed"):
            self.fail("error_event")
        elif kind.endswith(".completed"):
            self.done = True
            self._add_texts(None if fragments else parsed.transcript)
        else:
            self._add_texts(parsed.delta if isinstance(parsed.delta, str) else parsed.text)
        if parsed.usage:
            self._report(parsed.usage, usage_of(parsed.usage, self.flags))
        return parsed
