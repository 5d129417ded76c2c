"""Messages of Realtime's clients: requested responses, settings of the session, items of the conversation.

Invariants: only fields that admission and estimates need are read. Nothing is changed but the name of the session's
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.dialects.openai_realtime.tally import MS_PER_PROMPT_TOKEN
from proxy.metering.request import InvalidField, integer, json_bytes
from proxy.metering.usage import TOKENS_MAX, PromptEvidence
from proxy.metering.wire.text import chars_of

SESSION_UPDATES = frozenset({"session.update", "transcription_session.update"})
# 24,000 samples of two bytes a second; telephones send 8,000 of one.
PCM_BYTES_PER_S, PHONE_BYTES_PER_S = 48_000, 8_000

_LIMITS = ("max_output_tokens", "max_response_output_tokens")
_REFERENCE = "item_reference"


def output_limit(settings: Mapping[str, Any], within: str) -> tuple[bool, int | None]:
    """Whether a limit of the output is set, and which; None: `inf`. Raises InvalidField."""
    for name in _LIMITS:
        if settings.get(name) == "inf":
            return True, None
        limit = integer(settings, name, f"{within}.{name}", at_most=TOKENS_MAX)
        if limit is not None:
            return True, limit
    return False, None


def transcriber_in(session: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Whether a session's settings have a transcription of the client's audio, and its model; None: no transcription,
    or no name of its model."""
    audio = session.get("audio")
    given = audio.get("input") if isinstance(audio, dict) else None
    for place, name in ((given, "transcription"), (session, "input_audio_transcription")):
        if isinstance(place, dict) and name in place:
            settings = place[name]
            model = settings.get("model") if isinstance(settings, dict) else None
            return True, model if isinstance(model, str) and model else None
    return False, None


def bytes_per_s(session: Mapping[str, Any], side: str) -> int | None:
    """Bytes per second of a session's audio, `input` or `output`; None: not set."""
    audio = session.get("audio")
    given = audio.get(side) if isinstance(audio, dict) else None
    found = given.get("format") if isinstance(given, dict) else session.get(f"{side}_audio_format")
    kind = found.get("type") if isinstance(found, dict) else found
    if not isinstance(kind, str):
        return None
    return PCM_BYTES_PER_S if "pcm" in kind and "pcmu" not in kind and "pcma" not in kind else PHONE_BYTES_PER_S


def audio_ms(encoded: object, per_s: int) -> int:
    """The length of audio in base64, in milliseconds."""
    return len(encoded) * 3 // 4 * 1000 // per_s if isinstance(encoded, str) else 0


class PendingInput:
    """The input of a conversation since its last response: a part of the next prompt."""

    __slots__ = ("_images", "_items", "_texts", "_tool_chars", "audio_ms")

    def __init__(self) -> None:
        self._texts = [0] * 5  # characters by class
        self._items = self._images = self._tool_chars = 0
        self.audio_ms = 0

    def add_item(self, item: Mapping[str, Any], per_s: int) -> None:
        """Add an item of the conversation."""
        self._items += 1
        content = item.get("content")
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                continue
            for name in ("text", "transcript"):
                if isinstance(text := part.get(name), str):
                    self.add_text(text)
            if "image" in str(part.get("type")):
                self._images += 1
            self.audio_ms += audio_ms(part.get("audio"), per_s)
        self._tool_chars += sum(len(item[name]) for name in ("arguments", "output") if isinstance(item.get(name), str))

    def add_text(self, text: str) -> None:
        """Add text of a message or of instructions."""
        self._texts = [had + more for had, more in zip(self._texts, chars_of(text), strict=False)]

    def add_tools(self, tools: object) -> None:
        """Add definitions of functions."""
        if tools:
            self._tool_chars += json_bytes(tools)

    @property
    def audio_tokens(self) -> int:
        """Tokens of all the audio."""
        return -(-self.audio_ms // MS_PER_PROMPT_TOKEN)

    def evidence(self) -> PromptEvidence:
        """The evidence of the input without its audio."""
        latin, wide, other, blanks, marks = self._texts
        return PromptEvidence(
            messages=self._items,
            chars_latin=latin,
            chars_wide=wide,
            chars_other=other,
            blanks=blanks,
            marks=marks,
            tool_chars=self._tool_chars,
            images=self._images,
        )


def own_input(response: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The items that a response has instead of the conversation; None: it has the conversation. Raises
    InvalidField."""
    items = response.get("input")
    if items is None:
        return None
    if not isinstance(items, list):
        raise InvalidField("response.input", "must be an array")
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            raise InvalidField(f"response.input[{at}]", "must be an object")
    return None if any(item.get("type") == _REFERENCE for item in items) else items
