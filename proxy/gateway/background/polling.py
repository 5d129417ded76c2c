"""When a provider is asked for an answer that it makes in the background, and when it is asked no more.

Invariants: pure; times by `time.monotonic` are given. Whatever a provider answers, the last step comes soon after its
time limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from proxy.metering.metered import Metered


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. OpenAI's own examples ask every two seconds; it keeps an ended answer for ten minutes at least.
    https://developers.openai.com/api/docs/guides/background"""

    first_s: float = 1.0
    pause_s_max: float = 20.0
    asked_pause_s_max: float = 300.0
    """a provider may ask for longer ones (Retry-After)"""
    usage_s: float = 2.0
    """a stopped answer may get its usage a little later"""
    gone_s: float = 60.0
    """an answer that is not found may be younger than what a replica of the provider knows"""
    stopping_s: float = 60.0
    """from the request to stop to an answer that says that it has ended"""


GROWTH = 1.5
"""of a pause to the next one"""


@dataclass(frozen=True, slots=True)
class Look:
    """What a provider answered when it was asked for an answer."""

    metered: Metered | None = None
    """None: it was not given"""
    gone: bool = False
    """the provider does not have it, or does not give it in this way: asking again is in vain"""
    retry_after_s: float = 0.0


class Step(StrEnum):
    """What to do next."""

    WAIT = auto()
    STOP = auto()
    """ask the provider to stop, then wait"""
    SETTLE = auto()
    """the answer has ended"""
    NOT_FOUND = auto()
    """settle it without its end"""
    TOO_LONG = auto()
    """the same"""


class Polling:
    """The steps of one answer. `pause_s`: until the next look."""

    __slots__ = ("_gone_since", "_has_ended", "_pace", "_stopped", "_until", "looks", "pause_s")

    def __init__(self, until: float, pace: Pace, *, stopped: bool = False) -> None:
        """`until`: its time limit. `stopped`: the provider was asked to stop."""
        self._until = until
        self._pace = pace
        self._stopped = stopped
        self._has_ended = False
        self._gone_since: float | None = None
        self.pause_s = pace.first_s
        self.looks = 0

    def next(self, now: float, look: Look) -> Step:
        """After this look."""
        pace = self._pace
        self.looks += 1
        if self._has_ended or (look.metered is not None and look.metered.answer_ended):
            waited, self._has_ended = self._has_ended, True
            self.pause_s = pace.usage_s
            usage = None if look.metered is None else look.metered.usage
            return Step.WAIT if usage is None and not waited else Step.SETTLE
        grown = min(pace.pause_s_max, self.pause_s * GROWTH)
        self.pause_s = max(grown, min(look.retry_after_s, pace.asked_pause_s_max))
        if not look.gone:
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
