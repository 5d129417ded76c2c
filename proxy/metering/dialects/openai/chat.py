"""The dialect of chat/completions: chunks and answers → evidence, usage, finish reason.

Invariants: all generated text is counted, in every known field; error text is not. The usage is that of the last event
with one, never a sum.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.counts import with_thoughts
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.request import facts, upstream_document
from proxy.metering.dialects.openai.strip import UsageStripper
from proxy.metering.dialects.openai.usage import KNOWN, usage_of
from proxy.metering.dialects.openai.wire import Choice, Chunk, Part, ToolCall, called, chunk_of, flatten
from proxy.metering.held_text import AnswerText, TextKind
from proxy.metering.tally import Tally, identifier, says_error, word
from proxy.metering.unknown_fields import members
from proxy.metering.usage import service_in_tier
from proxy.metering.wire.event_template import EventTemplate, template_of
from proxy.metering.wire.text import GrowingText, chars_about
from proxy.metering.wire.unknown_text import Outputs, Place

# OpenAI's own limit on n. Further choices of a stream are read but not tracked individually.
CHOICES_MAX = 128
# Flags: the contents of one choice of an event.
_TEXT, _CALL = 1, 2

_PART = """
content reasoning_content reasoning reasoning_details refusal tool_calls function_call audio annotations
"""
PLACES = (
    Place("choices.delta choices.message", _PART),
    Place("choices.delta.content.* choices.message.content.*", "text thinking content reference_ids"),
    Place("choices", "delta message text", mixed=True),
)
"""places of output in a chunk or an answer"""

# Fields of an event's text.
_TEXT_NAMES = ("content", "reasoning_content", "reasoning")


class ChatTally(Tally):
    """The counts of one answer."""

    __slots__ = ("_cumulative", "_growing", "_plain", "_plain_reasoning")

    known = members(KNOWN)
    outputs = Outputs(*PLACES)

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._cumulative = cumulative
        self._growing: dict[tuple[int, bool], GrowingText] = {}
        self._plain: set[int] = set()  # choices whose texts are known to be fragments
        self._plain_reasoning: set[int] = set()

    def read(self, event: bytes, name: bytes) -> Chunk | None:
        chunk = chunk_of(event)
        if chunk is not None:
            self._read_chunk(chunk, failed=name == b"error")
        return chunk

    def _read_chunk(self, chunk: Chunk, *, failed: bool = False) -> None:
        if chunk.usage is not None or chunk.x_groq is not None:
            self._read_usage(chunk)
        if self.response_id is None:
            self.response_id = identifier(chunk.id)
        if chunk.service_tier is not None:
            self.served_as = service_in_tier(chunk.service_tier, self.served_as)
        if failed or (chunk.error and says_error(chunk.error)):
            self.fail("error_event")
            return
        if chunk.full_text:
            self._all_cumulative()
        kinds = 0
        for choice in chunk.choices or ():
            kinds |= self._read_choice(choice)
        self.evidence.text_events += kinds & _TEXT
        self.evidence.tool_events += kinds >> 1
        if chunk.err_msg and not kinds:
            self.fail("err_msg")

    def template(self, read: Chunk, event: bytes) -> EventTemplate | None:
        """The template of this event if it contains only one fragment of text; else None."""
        chunk, choices = read, read.choices
        if chunk.error and says_error(chunk.error):
            return None
        if chunk.usage is not None or chunk.x_groq is not None or chunk.err_msg or chunk.full_text:
            return None
        if not choices or len(choices) > 1:
            return None
        choice, part, index = choices[0], choices[0].delta, choices[0].index or 0
        if choice.error and says_error(choice.error):
            return None
        if part is None or choice.finish_reason or choice.err_msg or choice.message or choice.text:
            return None
        if (
            part.refusal
            or part.audio
            or part.tool_calls
            or part.function_call
            or part.reasoning_details
            or part.annotations
        ):
            return None
        texts = [(name, text) for name in _TEXT_NAMES if (text := getattr(part, name))]
        if len(texts) != 1:
            return None
        name, text = texts[0]
        reasoning = name != "content"
        if index not in (self._plain_reasoning if reasoning else self._plain):
            return None
        return template_of(event, name.encode(), text, reasoning=reasoning)

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer. If a choice has both a message and a delta, the message applies."""
        chunk = chunk_of(body)
        if chunk is None:
            return False
        if chunk.error and says_error(chunk.error):
            self.fail("error_body")
        for choice in chunk.choices or ():
            choice.delta = choice.message or choice.delta
            self._plain.add(choice.index or 0)  # nothing follows that could repeat it
            self._plain_reasoning.add(choice.index or 0)
        self._read_chunk(chunk)
        self.done = chunk.choices is not None
        return True

    def settle(self) -> None:
        self.flush()
        for (_, reasoning), growing in self._growing.items():
            growing.settle()
            if self._held is not None:
                self._held.add(TextKind.REASONING if reasoning else TextKind.TEXT, growing.news)
            if growing.cumulative:
                self.flags.add("cumulative")

    def held(self) -> AnswerText | None:
        """The text, if there is one choice: the interleaved fragments of several choices are no text."""
        if self._held is None:
            return None
        choices = self._plain | self._plain_reasoning | {index for index, _ in self._growing}
        return super().held() if len(choices) <= 1 else None

    def _read_usage(self, chunk: Chunk) -> None:
        raw = chunk.usage or (chunk.x_groq.usage if chunk.x_groq is not None else None)
        if not raw:
            return
        self.cost_beside = chunk.cost
        usage = usage_of(raw, self.flags)
        if _has_hidden_thoughts(chunk.model):
            usage = with_thoughts(usage)
        self._report(raw, usage, running=bool(chunk.choices))

    def _read_choice(self, choice: Choice) -> int:
        if choice.finish_reason:
            self.finish_reason = word(choice.finish_reason)
            if choice.finish_reason == "error":
                self.fail("error_event")
        part = choice.delta or self._part_without_delta(choice)
        if part is not None and part.content is not None and type(part.content) is not str:
            flatten(part)
        failed = choice.error and says_error(choice.error)
        if failed or (choice.err_msg and not (part and part.content)):
            self.fail("error_event" if failed else "err_msg")
            return 0
        if part is None:
            return 0
        if part.annotations:
            self._read_citations(part.annotations)
        index = choice.index or 0
        kinds = 0
        if part.content:
            assert isinstance(part.content, str), "it is flattened"
            kinds = _TEXT
            if index in self._plain:
                self._texts.append(part.content)
            else:
                self._read_growing(index, part.content, reasoning=False)
        if part.reasoning_content or part.reasoning or part.reasoning_details:
            kinds |= self._read_reasoning(index, part)
        if part.refusal or part.audio is not None:
            kinds |= self._read_refusal_or_audio(part)
        if part.tool_calls or part.function_call is not None:
            kinds |= self._read_calls(index, part)
        return kinds

    def _read_citations(self, annotations: list[Any]) -> None:
        """Pages found in the web. OpenAI's models that search do so once for every request, and their usage does not
        have it. https://developers.openai.com/api/docs/guides/tools-web-search"""
        cited = (isinstance(one, dict) and one.get("type") == "url_citation" for one in annotations)
        if "searches" not in self.units and any(cited):
            self._seen("searches", 1)

    def _part_without_delta(self, choice: Choice) -> Part | None:
        # A message that follows deltas of the same choice repeats them.
        index = choice.index or 0
        if index in self._plain or (index, False) in self._growing:
            return None
        return choice.message or (Part(content=choice.text) if choice.text else None)

    def _read_reasoning(self, index: int, part: Part) -> int:
        # Alternative fields of the same text: count one of them.
        details = part.reasoning_details or ()
        text = part.reasoning_content or part.reasoning or "".join(d.text or d.summary or "" for d in details)
        if not text:
            return 0
        if index in self._plain_reasoning:
            self._reasonings.append(text)
        else:
            self._read_growing(index, text, reasoning=True)
        return _TEXT

    def _read_growing(self, index: int, text: str, *, reasoning: bool) -> None:
        key = (index, reasoning)
        growing = self._growing.get(key)
        if growing is None:
            growing = GrowingText(sure=self._cumulative is True)
            growing.plain = self._cumulative is False or len(self._growing) >= 2 * CHOICES_MAX
            self._growing[key] = growing
        news: str | None = text
        if growing.plain:
            chars = chars_about(text)
        else:
            chars, news = growing.take(text), growing.news
        self.evidence.count(chars, reasoning=reasoning)
        if self._held is not None:
            self._held.add(TextKind.REASONING if reasoning else TextKind.TEXT, news)
        if growing.plain:
            del self._growing[key]
            plain_ones = self._plain_reasoning if reasoning else self._plain
            if len(plain_ones) < CHOICES_MAX:
                plain_ones.add(index)

    def _all_cumulative(self) -> None:
        self._cumulative = True
        for (_, reasoning), growing in self._growing.items():
            self.evidence.count(growing.be_sure(), reasoning=reasoning)

    def _read_refusal_or_audio(self, part: Part) -> int:
        text = (part.refusal or "") + ((part.audio.transcript or "") if part.audio is not None else "")
        self._texts.append(text)
        return _TEXT if text else 0

    def _read_calls(self, index: int, part: Part) -> int:
        written = ""
        for call in part.tool_calls or ():
            written += self._read_call(index, call)
        if (legacy := part.function_call) is not None and (text := called(legacy)):
            self._begin_call((index, "function_call"))
            written += text
        if not written:
            return 0
        self._called.append(written)
        return _CALL

    def _read_call(self, index: int, call: ToolCall) -> str:
        """Count the call. Returns its text."""
        # With an id: one call per id. Without: a fragment of the call at that index.
        place: tuple[int, int | str] = (index, 0 if call.index is None else call.index)
        if call.id:
            self._begin_call((index, call.id))
            self._calls.add(place)
        else:
            self._begin_call(place)
        written = ""
        if call.function is not None:
            written = called(call.function)
        if call.custom is not None:
            written += (call.custom.name or "") + (call.custom.input or "")
        return written


def _has_hidden_thoughts(model: str | None) -> bool:
    """Whether the model is Google's, at its OpenAI-compatible endpoint: thoughts are only in the total, and are billed
    as output. https://ai.google.dev/gemini-api/docs/thinking#pricing"""
    return model is not None and "gemini-" in model and model.rpartition("/")[2].startswith("gemini-")


OPENAI_CHAT = Dialect(
    name="openai.chat",
    paths=("/v1/chat/completions",),
    facts=facts,
    upstream_document=upstream_document,
    tally=ChatTally,
    stripper=UsageStripper,
    cost_path=("usage",),
    names_files=True,
)
