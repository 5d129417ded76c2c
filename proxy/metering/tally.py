"""What a meter asks of a wire language: the `Tally`, and the counting that all of them share.

Law: a tally never raises for what a provider sends, and keeps no text longer than one look of the meter. It is told
whole events or a whole answer; how they were cut is not its business.
"""

from __future__ import annotations

from typing import Any, Protocol

from proxy.metering.run import RunText, TextRun
from proxy.metering.text import Chars, chars_of
from proxy.metering.usage import Evidence, Usage

# More tool calls than any answer has; beyond it their characters still count, their number does not.
TOOL_CALLS_MAX = 4096
# Finish reasons are words; ids are under 100 characters everywhere. What is longer is not kept.
_WORD_CHARS_MAX = 64
_ID_CHARS_MAX = 256


class Tally(Protocol):
    """What the events of one answer add up to. `evidence` is exact after `flush`, final after `settle`."""

    evidence: Evidence
    """the one object: it grows"""
    usage: Usage | None
    """what was reported last: a count that the provider did not give as final is None"""
    usage_raw: dict[str, Any] | None
    """the object it came from, as it came"""
    finish_reason: str | None
    response_id: str | None
    service_tier: str | None
    """how the answer says it was served, as it came last; `service_tier_of` makes it a word"""
    failed: str | None
    """`error_event`, `error_body`, …: the provider said that it failed"""
    flags: set[str]
    done: bool
    """the provider said that nothing more will come; a whole JSON answer is done"""

    def read(self, event: bytes, name: bytes) -> object | None:
        """One event of a stream: what was read, for `run`. None, and nothing is changed, if it is none of this
        language."""

    def run(self, read: Any, event: bytes) -> TextRun | None:
        """The run that an event without a name, of which `read` has just made this, may begin; None if unsure."""

    def read_run(self, found: RunText) -> None:
        """Events of a run: what `read` would have made of each."""

    def read_answer(self, body: bytes) -> bool:
        """One whole JSON answer. False, and nothing is changed, if it is no JSON object."""

    def fail(self, word: str) -> None:
        """The provider said that it failed. The first word stays."""

    def flush(self) -> None:
        """Count what `read` put aside: joined, because counting many texts at once is cheaper."""

    def settle(self) -> None:
        """The answer is over: decide what was still open. Idempotent."""


class Counting:
    """The half of a tally that is the same in every language: fields, counters, texts put aside."""

    __slots__ = (
        "_calls", "_reasonings", "_texts", "done", "evidence", "failed", "finish_reason", "flags", "response_id",
        "service_tier", "usage", "usage_raw",
    )  # fmt: skip

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.usage: Usage | None = None
        self.usage_raw: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.response_id: str | None = None
        self.service_tier: str | None = None
        self.failed: str | None = None
        self.flags: set[str] = set()
        self.done = False
        self._texts: list[str] = []  # fragments not counted yet
        self._reasonings: list[str] = []
        self._calls: set[tuple[int, int | str]] = set()

    def run(self, read: Any, event: bytes) -> TextRun | None:
        """No runs are looked for."""
        return None

    def read_run(self, found: RunText) -> None:
        """Events of a run: each non-empty text was an event of its own."""
        self.evidence.text_events += found.spoken
        self._count(found.chars, reasoning=found.reasoning)

    def fail(self, word: str) -> None:
        """The provider said that it failed. The first word stays."""
        self.failed = self.failed or word

    def flush(self) -> None:
        """Counts the fragments that were put aside."""
        if self._texts:
            self._count(chars_of("".join(self._texts)), reasoning=False)
            self._texts.clear()
        if self._reasonings:
            self._count(chars_of("".join(self._reasonings)), reasoning=True)
            self._reasonings.clear()

    def settle(self) -> None:
        """The answer is over. Idempotent."""
        self.flush()

    def _begin(self, call: tuple[int, int | str]) -> None:
        """A tool call, perhaps known already."""
        if call not in self._calls and len(self._calls) < 2 * TOOL_CALLS_MAX:
            self._calls.add(call)
            self.evidence.tool_calls += 1

    def _count(self, chars: Chars, *, reasoning: bool) -> None:
        evidence = self.evidence
        evidence.chars_latin += chars[0]
        evidence.chars_wide += chars[1]
        evidence.chars_other += chars[2]
        if reasoning:
            evidence.reasoning_chars += sum(chars)


def word(text: str) -> str:
    """A provider's word, fit for a ledger and a metric; "other" if it is none."""
    bare = text.replace("_", "").replace("-", "").replace(" ", "")
    return text if len(text) <= _WORD_CHARS_MAX and bare.isascii() and bare.isalnum() else "other"


def identifier(text: str | None) -> str | None:
    """An id in one word: what has blanks is a text, and texts are not kept."""
    good = text and len(text) <= _ID_CHARS_MAX and text.isascii() and text.isprintable() and " " not in text
    return text if good else None
