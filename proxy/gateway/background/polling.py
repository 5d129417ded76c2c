"""Decides when to poll a provider for an answer that is made in the background, and when to stop.

Invariants: pure; times by `time.monotonic` are passed in. Whatever the provider answers, the last step comes soon after
the time limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from proxy.metering.metered import Metered


@dataclass(frozen=True, slots=True)
class Pace:
    """The intervals of polling, in seconds. OpenAI's examples poll every two seconds; it keeps an ended answer for ten
    minutes at least. https://developers.openai.com/api/docs/guides/background"""

    first_s: float = 1.0
    pause_s_max: float = 20.0
    asked_pause_s_max: float = 300.0
    """the longest pause that a provider can demand (Retry-After)"""
    usage_s: float = 2.0
    """the wait for the usage of an answer that has ended without one"""
    gone_s: float = 60.0
    """how long 'not found' is not final: a replica of the provider may lag"""
    stopping_s: float = 60.0
    """the wait for the end of an answer after its cancellation was requested"""


GROWTH = 1.5
"""the factor from one pause to the next"""


@dataclass(frozen=True, slots=True)
class PollResult:
    """The provider's response to one poll."""

    metered: Metered | None = None
    """the answer so far; None: not received"""
    gone: bool = False
    """the provider does not have the answer, or refuses it permanently"""
    retry_after_s: float = 0.0


class Step(StrEnum):
    """The next step."""

    WAIT = auto()
    STOP = auto()
    """cancel the answer, then wait"""
    SETTLE = auto()
    """the answer has ended"""
    NOT_FOUND = auto()
    """settle by partial evidence: the provider does not have the answer"""
    TOO_LONG = auto()
    """settle by partial evidence: the answer did not end in time"""


class Polling:
    """The steps of one answer. `pause_s`: the pause until the next poll."""

    __slots__ = ("_gone_since", "_has_ended", "_pace", "_stopped", "_until", "pause_s", "polls")

    def __init__(self, until: float, pace: Pace, *, stopped: bool = False) -> None:
        """`until`: the time limit of the answer. `stopped`: its cancellation was requested."""
        self._until = until
        self._pace = pace
        self._stopped = stopped
        self._has_ended = False
        self._gone_since: float | None = None
        self.pause_s = pace.first_s
        self.polls = 0

    def next(self, now: float, result: PollResult) -> Step:
        """The step after this poll."""
        pace = self._pace
        self.polls += 1
        if self._has_ended or (result.metered is not None and result.metered.answer_ended):
            waited, self._has_ended = self._has_ended, True
            self.pause_s = pace.usage_s
            usage = None if result.metered is None else result.metered.usage
            return Step.WAIT if usage is None and not waited else Step.SETTLE
        grown = min(pace.pause_s_max, self.pause_s * GROWTH)
        self.pause_s = max(grown, min(result.retry_after_s, pace.asked_pause_s_max))
        if not result.gone:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since >= pace.gone_s:
            return Step.NOT_FOUND
        return self._within_limit(now)

    def _within_limit(self, now: float) -> Step:
        if now < self._until:
            self.pause_s = min(self.pause_s, self._until - now)
            return Step.WAIT
        if self._stopped:
            return Step.TOO_LONG
        self._stopped = True
        self._until = now + self._pace.stopping_s
        self.pause_s = self._pace.first_s
        return Step.STOP
