"""Makes exactly one record, outcome `crashed`, for each exchange that a crash left open, from its last progress.

Invariants: pure. Events and bytes are never fewer than the client received. Token counts are the provider's if they
were reported in time, else estimated from everything delivered. An exchange that delivered nothing costs nothing. The
duration is the time from admission to the last note or wait: a lower bound (0.0 if there was none). The time of the
crash is unknown, and the time of the restart is unrelated to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from functools import partial

from msgspec import UNSET, structs

from proxy.billing.details import EntryDetails
from proxy.billing.ending import FREE, Ending, compared, record_of
from proxy.billing.record import Opened, Outcome, UsageRecord
from proxy.journal.progress import Progress, ProgressTable
from proxy.metering.counts import fitted
from proxy.metering.estimator.estimate import Estimator, model_key, reading
from proxy.metering.estimator.silence import with_silence
from proxy.metering.metered import Metered
from proxy.metering.unknown_fields import UnknownFields, Value
from proxy.metering.usage import (
    NO_USAGE,
    NOTHING,
    OTHER_WORD,
    Evidence,
    ModelUsage,
    PromptEvidence,
    Reading,
    Usage,
    UsageSource,
)

# After the event with the final usage at most a finish event and [DONE] follow; more events mean that the usage was an
# interim one (some providers repeat it in every event) and that tokens followed it.
_EVENTS_AFTER_USAGE = 2

# An event without its text: the fields of an ordinary chat.completion.chunk are 180 to 280 bytes.
_FRAMING_BYTES = 250

# English text of one token; a provider sends about one token per event.
_CHARS_PER_EVENT = 4


def recover(unfinished: Iterable[Opened], table: ProgressTable, estimator: Estimator) -> list[UsageRecord]:
    """Make one record for each unfinished exchange, in their order."""
    return [_record(opened, _progress(opened, table), estimator, EntryDetails(recovered=True)) for opened in unfinished]


def sweep(opened: Opened, progress: Progress | None, estimator: Estimator) -> UsageRecord:
    """Make the record of an exchange of a dead machine, from its lease.

    With equal estimators, a lease gives one record, byte for byte, on every machine.
    """
    return _record(opened, progress, estimator, EntryDetails(swept=True))


def _progress(opened: Opened, table: ProgressTable) -> Progress | None:
    """The exchange's progress, unless the slot belongs to another exchange."""
    progress = table.read(opened.slot)
    return progress if progress is not None and progress.exchange_id == opened.exchange_id else None


def _record(opened: Opened, progress: Progress | None, estimator: Estimator, details: EntryDetails) -> UsageRecord:
    """`details`: the origin of the record."""
    if progress is None:
        details.progress = "missing"
        return record_of(opened, Ending(outcome=Outcome.CRASHED, accepted=False, delivered=False, details=details))
    delivered = progress.events > 0 or progress.bytes > 0
    metered = metered_of(progress) if delivered else None
    if metered is not None and opened.price != FREE:
        bound = partial(estimator.broken_bound, model_key(opened.provider, opened.upstream_model))
        compared(metered, PromptEvidence(), details, bound)  # billed as reported: the provider's settings are unknown
    found = NOTHING if metered is None else _reading(opened, progress, metered, estimator)
    if metered is not None and found.source is not UsageSource.REPORTED:
        details.noted_events = progress.noted_events
    ending = Ending(
        outcome=Outcome.CRASHED,
        reading=found,
        metered=metered,
        accepted=delivered,
        delivered=delivered,
        events=progress.events,
        size=progress.bytes,
        duration_ms=_duration_ms(opened, progress),
        details=details,
    )
    return record_of(opened, ending)


def _duration_ms(opened: Opened, progress: Progress) -> float:
    if not progress.last_at:
        return 0.0
    return max(0.0, round((progress.last_at - opened.started_at) * 1000, 3))


def silent_s(opened: Opened, progress: Progress) -> float:
    """Seconds from the request to the provider that answered to the last note or wait: a lower bound."""
    if not progress.last_at:
        return 0.0
    return progress.last_at - max(
        [opened.started_at, *(attempt.started_at + attempt.duration_ms / 1000 for attempt in opened.attempts)]
    )


def _reading(opened: Opened, progress: Progress, metered: Metered, estimator: Estimator) -> Reading:
    """The usage of an exchange that ended at its last progress. `metered`: its answer up to then."""
    read = partial(
        reading,
        estimator=estimator,
        model_key=model_key(opened.provider, opened.upstream_model),
        prompt_tokens_estimate=opened.prompt_tokens_estimate,
        completion_tokens_max=opened.completion_tokens_max,
        # Of a drain, more was read than delivered: at least a byte for each character that the meter has seen.
        bytes_seen=max(progress.bytes, metered.evidence.chars),
        accepted=True,
        asked=NO_USAGE if opened.asked is UNSET else opened.asked,
    )
    found = read(metered, echoes=opened.echoes is not UNSET)
    if found.limit_exceeded and not read(structs.replace(metered, evidence=progress.evidence)).limit_exceeded:
        found = read(metered, echoes=True)  # what the scale adds proves nothing
    return (
        found if opened.silence is UNSET else with_silence(found, metered, opened.silence, silent_s(opened, progress))
    )


def metered_of(progress: Progress) -> Metered:
    """The metered answer up to the last progress."""
    evidence = evidence_of(progress)
    usage, odd = (None, ()) if progress.usage is None else fitted(progress.usage, evidence.tokens_seen)
    seen = progress.seen
    unknown: dict[str, Value] = {"output.other": seen.unknown_items} if seen.unknown_items else {}
    followed = progress.events > progress.noted_events + _EVENTS_AFTER_USAGE
    return Metered(
        usage=usage,
        usage_raw=None,
        evidence=evidence,
        finish_reason=None,
        response_id=None,
        complete=False,
        failed=None,
        events=progress.events,
        flags=tuple(sorted({*odd, *seen.flags})),
        timings={},
        completion_so_far=progress.running.completion_tokens,
        usage_behind=progress.running.behind + followed,
        served_as=seen.served_as,
        other_models=(ModelUsage(OTHER_WORD, Usage(images=seen.images)),) if seen.images else (),
        unknown_usage_fields=UnknownFields(tuple(unknown), unknown),
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
