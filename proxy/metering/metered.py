"""The result of metering an answer, the base class of its meters, and the meter of an answer that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import fitted, plain, timings
from proxy.metering.held_text import AnswerText
from proxy.metering.stated import stated_usd
from proxy.metering.tally import Tally
from proxy.metering.unknown_fields import NO_UNKNOWN_FIELDS, UnknownFields, unknown_fields
from proxy.metering.usage import NOT_SAID, Evidence, ModelUsage, Seen, ServedAs, Usage
from proxy.metering.wire.event_template import TemplateMatch, TemplateMatcher


class Metered(msgspec.Struct, frozen=True):
    """The result of metering one answer. Notes about background responses contain it under its stored names."""

    usage: Usage | None
    """the last reported usage; None: not reported"""
    usage_raw: dict[str, Any] | None
    """the usage object as plain JSON values, without its array of times"""
    evidence: Evidence
    finish_reason: str | None
    response_id: str | None
    complete: bool
    """the dialect's last event or a finish reason was received, or a whole JSON answer, with output or usage"""
    failed: str | None
    """the provider reported a failure: `error_event`, `error_body`, `err_msg`; else None"""
    events: int
    """whole events with data, including the last one; 0 for a JSON answer"""
    flags: tuple[str, ...]
    """anomalies, sorted"""
    timings: dict[str, float]
    served_as: ServedAs = NOT_SAID
    """the terms of service of the answer"""
    completion_so_far: int | None = None
    """the provider's running count of completion tokens, where it is not final"""
    held: AnswerText | None = None
    """the text of the answer, to be counted; None: there is none"""
    usage_final: bool = False
    """`usage` has all counts of an ended answer: it came with or after a finish reason or the last event, alone in an
    event that no output followed, or in a whole JSON answer. False: no usage, or running counts in events with output
    """
    unknown_usage_fields: UnknownFields = msgspec.field(default=NO_UNKNOWN_FIELDS, name="unread")
    """reported fields that this version does not read"""
    stated_usd: Decimal | None = None
    """the cost that the provider states, in USD"""
    served_model: str | None = None
    """the model that the usage belongs to, if it is not the requested one"""
    other_models: tuple[ModelUsage, ...] = ()
    """usage of other models, not included in `usage`"""
    in_background: bool | None = None
    """background response; None: unknown"""
    answer_ended: bool = True
    """generation has ended; False: the provider stores the answer and has not reported its end"""
    usage_behind: int = 0
    """events with output after the last usage; above 0, that usage counts only a part of the answer"""

    @property
    def generated(self) -> bool:
        """Whether generated output was observed: text, tool calls, or counted audio."""
        return not self.evidence.empty or (self.usage is not None and bool(self.usage.audio_completion_tokens))

    @property
    def seen(self) -> Seen:
        """The facts of the answer other than its usage: service terms, images, unknown items, flags."""
        images = sum(other.usage.images or 0 for other in self.other_models)
        return Seen(self.served_as, images, len(self.unknown_usage_fields.paths), self.flags)

    @property
    def reported_completion(self) -> int | None:
        """The reported completion; None: not reported, or only for a part of the answer."""
        return None if self.usage is None or self.usage_behind else self.usage.completion_tokens


class BodyMeter:
    """Meters a stream or a plain answer. `bytes_seen` is always exact, `tally` after `fold`, unless it is `behind`."""

    __slots__ = ("_metered", "behind", "bytes_seen", "is_awaited", "tally")

    sure_bytes = 16 << 10
    """the end of a body of so many bytes takes no longer than one turn of the event loop may"""

    def __init__(self, tally: Tally) -> None:
        self.bytes_seen = 0
        """bytes fed and matched"""
        self.behind = False
        """fed bytes are not read yet, since that takes longer than one turn of the event loop: call `catch_up` in
        several before more is fed, and before the answer is closed; else all of it is read then"""
        self.is_awaited = False
        """`catch_up` is called: so `fold` does not read the rest at once"""
        self.tally = tally
        """the answer so far"""
        self._metered: Metered | None = None

    @property
    def done(self) -> bool:
        """The dialect's last event was received."""
        return False

    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two events, so that an own event may follow."""
        return False

    @property
    def matcher(self) -> TemplateMatcher | None:
        """Matches the next events if they differ from the last one only in their text; None: there is no template."""
        return None

    def take(self, match: TemplateMatch) -> None:
        """Count events that `matcher` has matched; they are not fed."""

    def feed(self, payload: bytes) -> None:
        """Add bytes of the body."""
        self.bytes_seen += len(payload)

    def fold(self) -> None:
        """Read everything fed so far."""

    def catch_up(self) -> bool:
        """If the meter is `behind`: do some milliseconds of its work. Returns whether there is none left."""
        return True

    def end(self) -> None:
        """The body has ended. If the meter is `behind` then, call `catch_up` before `close`. Idempotent; not needed if
        `bytes_seen` is at most `sure_bytes`."""

    def give_up(self) -> None:
        """The exchange ends now: bytes that the meter has not read yet are counted by their size. It is not `behind`
        then."""

    def final_so_far(self, answers: int) -> Metered | None:
        """The result if the answer ended here and its usage is final; else None. `answers`: the number of requested
        answers: when one has finished, others may continue."""
        return None

    def close(self) -> Metered:
        """The result at the end of the body. Idempotent."""
        if self._metered is None:
            self._metered = self._result()
        return self._metered

    def _result(self) -> Metered:
        raise NotImplementedError


class OpaqueMeter(BodyMeter):
    """Meters a body with an unrequested content encoding, which the proxy cannot read, by its size: delivered bytes are
    never free.

    One byte counts as one character: compression saves about as much of a stream as its framing adds.
    """

    flags: tuple[str, ...] = ("encoded",)

    def __init__(self) -> None:
        super().__init__(Tally())

    def fold(self) -> None:
        self.tally.evidence.chars_latin = self.bytes_seen
        self.tally.evidence.text_events = min(1, self.bytes_seen)

    def _result(self) -> Metered:
        self.fold()
        return Metered(
            usage=None, usage_raw=None, evidence=self.tally.evidence, finish_reason=None, response_id=None,
            complete=True, failed=None, events=0, flags=self.flags, timings={},
        )  # fmt: skip


def result_of(
    tally: Tally, *, complete: bool, flags: set[str], reports: Sequence[bytes], cut: bool = False,
    behind: int = 0,
) -> Metered:  # fmt: skip
    """The result of an ended answer. `reports`: the texts with usage. `cut`: the last event or the answer is
    incomplete. `behind`: events with output after the last usage."""
    tally.settle()
    usage, others, raw = tally.usage, tally.other_models, tally.usage_raw
    if usage is not None:
        usage, odd = fitted(usage, tally.evidence.tokens_seen)
        flags = flags.union(odd)
    if others:
        others = tuple(structs.replace(one, usage=fitted(one.usage, 0)[0]) for one in others)
    complete = complete and (usage is not None or tally.has_output)
    kept = None if raw is None else plain(raw)
    if raw is not None and kept is None:
        flags = flags | {"usage_raw_dropped"}
    return Metered(
        usage=usage,
        usage_raw=kept,
        evidence=tally.evidence,
        finish_reason=tally.finish_reason,
        response_id=tally.response_id,
        complete=complete,
        failed=tally.failed,
        events=tally.events,
        flags=tuple(sorted(flags | tally.flags)),
        timings={} if raw is None else timings(raw),
        served_as=tally.served_as,
        completion_so_far=tally.completion_so_far,
        held=tally.held(),
        usage_final=tally.usage_final and not cut and not behind,
        unknown_usage_fields=unknown_fields(reports, tally.known, tally.unknown_items),
        stated_usd=None if raw is None else stated_usd(raw, tally.cost_beside),
        served_model=tally.served_model,
        other_models=others,
        usage_behind=behind,
        in_background=tally.in_background,
        answer_ended=tally.answer_ended,
    )
