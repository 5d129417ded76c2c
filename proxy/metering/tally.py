"""The `Tally` of an answer: the interface between the meter and a dialect, and the counting that all dialects share.

Invariants: a tally never raises for provider data. It keeps no text longer than one fold of the meter, except the text
held in `held_text`. It gets whole events or a whole answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from msgspec import structs

from proxy.metering.counts import later
from proxy.metering.held_text import AnswerText, TextKind
from proxy.metering.unknown_fields import PATHS_MAX, Members, members
from proxy.metering.usage import (
    NO_USAGE,
    NOT_RUNNING,
    NOT_SAID,
    NOTHING_SEEN,
    UNITS_MAX,
    Evidence,
    ModelUsage,
    Running,
    Seen,
    Usage,
)
from proxy.metering.wire.event_template import EventTemplate, TemplateMatch
from proxy.metering.wire.text import WINDOW_CHARS, chars_about, chars_of
from proxy.metering.wire.unknown_text import NO_TEXT, Outputs

# More than any answer has; the characters of further calls are counted, their number is not.
TOOL_CALLS_MAX = 4096
# Units that dialects count in the output.
_SEEN_UNITS = ("searches", "file_searches")
# Finish reasons are words, and ids have under 100 characters everywhere; longer ones are dropped.
_WORD_CHARS_MAX = 64
_ID_CHARS_MAX = 256


class Tally:
    """The counts of one answer, so far. `evidence` is exact after `flush`, final after `settle`.

    A dialect's subclass reads events and answers; the rest is shared.
    """

    known: ClassVar[Members] = members()
    """the members of events with usage that the dialect reads; none: every number is reported as unknown"""
    outputs: ClassVar[Outputs | None] = None
    """the places of generated text; None: text that the dialect does not read is not looked for"""
    in_background: bool | None = None
    """see `Metered.in_background`; so far"""
    images_seen: int = 0
    """finished images of a tool"""
    answer_ended: bool = True
    """see `Metered.answer_ended`; so far"""

    __slots__ = (
        "_called", "_calls", "_held", "_reasonings", "_said_before", "_texts", "completion_so_far", "cost_beside",
        "done", "events", "evidence", "failed", "finish_reason", "flags", "other_models", "output_at_usage",
        "response_id", "served_as", "served_model", "units", "unknown_items", "usage", "usage_raw",
    )  # fmt: skip

    def __init__(self, cumulative: bool | None = None) -> None:
        self.evidence = Evidence()
        """counters of the output so far, updated in place"""
        self.events = 0
        """whole events with data, including the last one; 0 for a JSON answer"""
        self.usage: Usage | None = None
        """the last reported usage; counts that are not final are None"""
        self.usage_raw: dict[str, Any] | None = None
        """the usage object as received"""
        self.output_at_usage: int | None = None
        """events with output when the last event with usage came; None: none has come"""
        self.completion_so_far: int | None = None
        """the provider's running count of completion tokens, where it is not final"""
        self.finish_reason: str | None = None
        self.response_id: str | None = None
        self.cost_beside: object = None
        """a cost that the provider states next to the usage: see `stated_usd`"""
        self.served_as = NOT_SAID
        """the last reported terms of service"""
        self.served_model: str | None = None
        """see `Metered.served_model`"""
        self.other_models: tuple[ModelUsage, ...] = ()
        """see `Metered.other_models`"""
        self.failed: str | None = None
        """code of a failure that the provider reported: `error_event`, `error_body`, …"""
        self.flags: set[str] = set()
        self.done = False
        """the dialect's last event was received, or a whole JSON answer"""
        self.units: dict[str, int | None] = {}
        """billed units that were counted in the output when they were seen, by their field of `Usage`; None: the usage
        reports them"""
        self.unknown_items: dict[str, int] = {}
        """numbers of items of the output that may be billed and are unknown to the dialect, by path:
        `output.shell_call`"""
        self._said_before: int | None = None  # events with output before the last usage; None: it is running
        self._texts: list[str] = []  # fragments not counted yet
        self._reasonings: list[str] = []
        self._called: list[str] = []  # names and arguments of tool calls
        self._held: AnswerText | None = None
        self._calls: set[tuple[int, int | str]] = set()

    def read(self, event: bytes, name: bytes) -> object | None:
        """Read one event of a stream. Returns the parsed event, for `template`; None, with nothing changed, if it is no
        event of this dialect. Dialects without streams have none."""
        return None

    def read_answer(self, body: bytes) -> bool:
        """Read a whole JSON answer. Returns False, with nothing changed, if it is no JSON object."""
        return False

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Read headers of the answer, named by the dialect, before its body. Most dialects read none."""

    @property
    def running(self) -> Running:
        """The relation of the last usage to the answer so far."""
        if self.output_at_usage is None:
            return NOT_RUNNING
        return Running(self.completion_so_far, self.output_events - self.output_at_usage)

    @property
    def seen(self) -> Seen:
        """The facts of the answer so far, other than its usage."""
        if not self.flags and not self.unknown_items and not self.images_seen and self.served_as is NOT_SAID:
            return NOTHING_SEEN
        return Seen(self.served_as, self.images_seen, sum(self.unknown_items.values()), self.flags)

    @property
    def usage_final(self) -> bool:
        """`usage` has all counts of an ended answer. With a finish reason or the last event, usage is final; without
        one, if it came alone and no output followed."""
        usage = self.usage
        if usage is None or (usage.completion_tokens is None and usage.lacks_tokens(not self.evidence.empty)):
            return False
        return self.done or self.finish_reason is not None or self._said_before == self.output_events

    @property
    def usage_alone(self) -> bool:
        """Whether the last usage came without output, or none came."""
        return self._said_before is not None or self.usage is None

    @property
    def output_events(self) -> int:
        """Number of events with generated output so far."""
        return self.evidence.text_events + self.evidence.tool_events

    @property
    def has_output(self) -> bool:
        """Whether there was output, or the model's reason for none; always where answers are not text."""
        return self.outputs is None or not self.evidence.empty or self.finish_reason is not None

    def template(self, read: Any, event: bytes) -> EventTemplate | None:
        """The template of an unnamed event that `read` has just returned as `read`; None if unsure."""
        return None

    def read_match(self, match: TemplateMatch) -> None:
        """Count matched events exactly as `read` would: each non-empty text is a text event."""
        self.events += match.events
        self.evidence.text_events += match.text_events
        self.evidence.count(match.chars, reasoning=match.reasoning)
        if self._held is not None:
            self._held.add_raw(TextKind.REASONING if match.reasoning else TextKind.TEXT, match.texts)

    def read_unknown_text(self, text: bytes, *, counted: bool) -> bool:
        """Count generated text in members that `read` and `read_answer` do not know, and flag it. `counted`: the event
        already counts as one with output. Returns whether there is any."""
        unknown = NO_TEXT if self.outputs is None else self.outputs.unknown_text(text)
        if not unknown.texts and not unknown.reasonings:
            return False
        self.flags.add("unread_text")
        self._texts += unknown.texts
        self._reasonings += unknown.reasonings
        self.evidence.text_events += not counted
        return True

    def hold(self, held: AnswerText) -> None:
        """Also hold the text of the answer. Call it before the first event."""
        self._held = held

    def held(self) -> AnswerText | None:
        """The text of the answer, after `settle`; None: it is not held, or cannot be counted."""
        return self._held or None

    def fail(self, code: str) -> None:
        """Record a failure that the provider reported. The first code stays."""
        self.failed = self.failed or code

    def add_truncated_bytes(self, size: int) -> None:
        """Count generated text of which only the size in bytes is known. A byte counts as one Latin character: other
        scripts have more bytes per character and more tokens. There is no text to hold."""
        self.evidence.chars_latin += size
        if self._held is not None:
            self._held.give_up()

    def flush(self) -> None:
        """Count the texts that `read` buffered; counting them joined is cheaper."""
        if self._texts:
            text = self._joined(self._texts, TextKind.TEXT)
            chars = chars_of(text) if len(text) <= WINDOW_CHARS else chars_about(text)
            self.evidence.count(chars, reasoning=False)
        if self._reasonings:
            text = self._joined(self._reasonings, TextKind.REASONING)
            chars = chars_of(text) if len(text) <= WINDOW_CHARS else chars_about(text)
            self.evidence.count(chars, reasoning=True)
        if self._called:
            self.evidence.tool_chars += len(self._joined(self._called, TextKind.CALLS))

    def _joined(self, fragments: list[str], kind: TextKind) -> str:
        text = "".join(fragments)
        fragments.clear()
        if self._held is not None:
            self._held.add(kind, text)
        return text

    def settle(self) -> None:
        """Resolve undecided counts at the end of the answer. Idempotent."""
        self.flush()

    def _add_texts(self, text: str | None, reasoning: str | None = None) -> None:
        """Buffer the text and the reasoning of one event, if any."""
        if text:
            self._texts.append(text)
        if reasoning:
            self._reasonings.append(reasoning)
        if text or reasoning:
            self.evidence.text_events += 1

    def _report(
        self, raw: dict[str, Any] | None, usage: Usage, odd: Iterable[str] = (), *, running: bool = False
    ) -> None:
        """Merge a reported usage, read from the object `raw`. `odd`: further flags.

        `running`: it came with output, so that it may be a running count. Call this before the output of its event is
        counted.
        """
        if usage != NO_USAGE:
            self.flags.update(odd)
            old = self.usage
            if old is not None and self.units:
                old = structs.replace(old, **self._uncounted(usage))
            elif usage.searches is not None or usage.file_searches is not None:
                self._uncounted(usage)
            self.usage, fell = (usage, False) if old is None else later(old, usage)
            if self.units:
                self._take_units()
            self.usage_raw = raw
            self._said_before = None if running else self.output_events
            if fell:
                self.flags.add("usage_decreased")

    def _seen(self, unit: str, number: int) -> None:
        """Count so many units in the output, such as searches. They stand without a usage, which replaces them."""
        if self.units.get(unit, 0) is not None:
            self.units[unit] = min(number, UNITS_MAX)
            self._take_units()

    def _take_units(self) -> None:
        """Add the counted units to the usage."""
        counted = {name: number for name, number in self.units.items() if number is not None}
        if counted:
            self.usage = structs.replace(self.usage or NO_USAGE, **counted)

    def _uncounted(self, usage: Usage) -> dict[str, None]:
        """The fields of counted units that `usage` reports: from now on its numbers apply."""
        reported = [name for name in _SEEN_UNITS if getattr(usage, name) is not None]
        counted = dict.fromkeys(name for name in reported if self.units.get(name) is not None)
        self.units |= dict.fromkeys(reported)
        return counted

    def _begin_call(self, call: tuple[int, int | str]) -> None:
        """Count a tool call, once."""
        if call not in self._calls and len(self._calls) < 2 * TOOL_CALLS_MAX:
            self._calls.add(call)
            self.evidence.tool_calls += 1

    def _keep_unknown(self, path: str, number: int = 1) -> None:
        """Count items of the output that may be billed and are unknown to the dialect."""
        if path in self.unknown_items or len(self.unknown_items) < PATHS_MAX:
            self.unknown_items[path] = self.unknown_items.get(path, 0) + number


# Members of an error object that say an error, if they are neither empty nor 0.
_ERROR_MEMBERS = ("code", "message", "type", "status")


def says_error(error: Any) -> bool:
    """Whether the member `error` of an event or answer reports one. Some providers send an empty one with every event:
    null, {}, "", false, {"code":0}, {"code":0,"message":""}."""
    if isinstance(error, dict):
        return any(error.get(name) for name in _ERROR_MEMBERS)
    return bool(error)


def word(text: str) -> str:
    """A provider's word if it is fit for a ledger and a metric label; else "other"."""
    return text if len(text) <= _WORD_CHARS_MAX and _is_word(text) else "other"


@lru_cache(maxsize=256)
def _is_word(text: str) -> bool:
    bare = text.replace("_", "").replace("-", "").replace(" ", "")
    return bare.isascii() and bare.isalnum()


def identifier(text: str | None) -> str | None:
    """A provider's id; None if it is too long or has blanks: it could be a text, and texts are not kept."""
    good = text and len(text) <= _ID_CHARS_MAX and text.isascii() and text.isprintable() and " " not in text
    return text if good else None
