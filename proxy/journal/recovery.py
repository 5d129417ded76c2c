"""Makes exactly one record, outcome `crashed`, for each exchange that a crash left open, from its last progress.

Invariants: pure. Events and bytes are never fewer than the client received; token counts are the provider's if it
reported them in time, else estimated from everything delivered. An exchange that delivered nothing costs nothing.

The duration is the time from admission to the meter's last note: a lower bound (0.0 if there was none). The time of
the crash is unknown, and the time of the restart is unrelated to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import Any, Protocol

from msgspec import structs

from proxy.billing.record import Opened, Outcome, UsageRecord
from proxy.billing.settlement import bills, situation
from proxy.journal.progress import Progress
from proxy.metering.usage import NO_USAGE, NOTHING, Evidence, Reading, Usage, UsageSource

# After the event with the final usage at most a finish event and [DONE] follow; more events mean that the usage was an
# interim one (some providers repeat it in every event) and that tokens followed it.
_EVENTS_AFTER_USAGE = 2

# An event without its text: the fields of an ordinary chat.completion.chunk are 180 to 280 bytes.
_FRAMING_BYTES = 250

# English text of one token; a provider sends about one token per event.
_CHARS_PER_EVENT = 4


class Estimate(Protocol):
    """An estimated completion."""

    @property
    def tokens(self) -> int: ...
    @property
    def expected_error(self) -> float: ...
    @property
    def capped(self) -> bool: ...
    @property
    def hidden(self) -> int | None: ...


class Estimator(Protocol):
    """The part of proxy.metering.estimator.estimate that recovery uses."""

    def completion(
        self, model_key: str, evidence: Evidence, *, completion_tokens_max: int | None, bytes_seen: int
    ) -> Estimate:
        """Completion tokens from counters; `bytes_seen` includes all framing."""

    def prompt_error(self, model_key: str) -> float:
        """The typical relative error of a prompt's estimate."""


class Slots(Protocol):
    """The progress table after the crash."""

    def read(self, index: int) -> Progress | None: ...


def recover(
    unfinished: Iterable[Opened], slots: Slots, estimator: Estimator, *, estimator_version: str
) -> list[UsageRecord]:
    """One record for each unfinished exchange, in the same order."""
    return [
        _record(opened, _progress(opened, slots), estimator, estimator_version, origin="recovered")
        for opened in unfinished
    ]


def sweep(opened: Opened, progress: Progress | None, estimator: Estimator, *, estimator_version: str) -> UsageRecord:
    """The record of an exchange of a dead machine, from its lease.

    With equal estimators, the same lease gives the same record, byte for byte, on every machine.
    """
    return _record(opened, progress, estimator, estimator_version, origin="swept")


def _progress(opened: Opened, slots: Slots) -> Progress | None:
    """The exchange's progress, unless the slot belongs to another exchange."""
    progress = slots.read(opened.slot)
    return progress if progress is not None and progress.exchange_id == opened.exchange_id else None


def _record(
    opened: Opened, progress: Progress | None, estimator: Estimator, estimator_version: str, *, origin: str
) -> UsageRecord:
    """`origin`: a name that is set to true in the record's details."""
    delivered = progress is not None and (progress.events > 0 or progress.bytes > 0)
    reading = NOTHING
    details: dict[str, Any] = {origin: True}
    if progress is None:
        details["progress"] = "missing"
    elif delivered:
        reading, why = _reading(opened, progress, estimator, estimator_version)
        details |= why
    facts = situation(Outcome.CRASHED, source=reading.source, accepted=delivered, delivered=delivered)
    return UsageRecord(
        opened=opened,
        outcome=Outcome.CRASHED,
        reading=reading,
        bills=bills(facts, opened.bill),
        events=progress.events if progress else 0,
        bytes=progress.bytes if progress else 0,
        duration_ms=_duration_ms(opened, progress),
        details=details,
    )


def _duration_ms(opened: Opened, progress: Progress | None) -> float:
    if progress is None or not progress.noted_at:
        return 0.0
    return max(0.0, round((progress.noted_at - opened.started_at) * 1000, 3))


def _reading(
    opened: Opened, progress: Progress, estimator: Estimator, estimator_version: str
) -> tuple[Reading, dict[str, Any]]:
    """The usage with its source, and details that explain it."""
    usage = progress.usage
    final = progress.events <= progress.noted_events + _EVENTS_AFTER_USAGE
    if usage is not None and final and usage.prompt_tokens is not None and usage.completion_tokens is not None:
        return Reading(usage, UsageSource.REPORTED), {}
    evidence, model_key = evidence_of(progress), f"{opened.provider}/{opened.upstream_model}"
    estimate = estimator.completion(
        model_key,
        evidence,
        completion_tokens_max=opened.completion_tokens_max,
        # Of a drain, more was read than delivered: at least a byte for each character that the meter has seen.
        bytes_seen=max(progress.bytes, evidence.chars),
    )
    counted = final and usage is not None and usage.completion_tokens is not None
    reading = Reading(
        _completed(usage or NO_USAGE, opened, estimate.tokens, final=final),
        UsageSource.ESTIMATED,
        estimator_version,
        estimator.prompt_error(model_key) if counted else estimate.expected_error,
        capped=estimate.capped and not counted,
        hidden_tokens=None if counted else estimate.hidden,
    )
    return reading, {
        "noted_events": progress.noted_events,
        "evidence": {name: count for name in Evidence.__slots__ if (count := getattr(evidence, name))},
        **({"interim_usage": True} if usage is not None and not final else {}),
    }


def _completed(reported: Usage, opened: Opened, completion_estimate: int, *, final: bool) -> Usage:
    """The reported usage, with estimates for missing counts; an interim count is a lower bound."""
    prompt = reported.prompt_tokens if reported.prompt_tokens is not None else opened.prompt_tokens_estimate
    completion = reported.completion_tokens
    if completion is None or not final:
        completion = max(completion or 0, reported.beside_audio(completion_estimate))
    return structs.replace(
        reported, prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


def evidence_of(progress: Progress) -> Evidence:
    """Evidence of everything delivered: the meter's last note, scaled by the events that followed it.

    Without a note, from events and bytes alone. Rounded up, so that no delivered event is left out.
    """
    noted, at = progress.evidence, progress.noted_events
    if progress.noted_at and progress.events <= at:
        return noted
    if noted.empty:
        events = max(1, progress.events - at)
        chars = max(events * _CHARS_PER_EVENT, progress.bytes - progress.events * _FRAMING_BYTES)
        return Evidence(text_events=events, chars_latin=min(chars, max(1, progress.bytes)))
    if at == 0:
        return noted
    return Evidence(*(-(-count * progress.events // at) for count in astuple(noted)))
