"""Recovery: what a crash left open becomes one honest record each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from proxy.billing.record import BillableParts, Opened, Outcome, UsageRecord
from proxy.billing.settlement import entry
from proxy.journal.progress import Progress
from proxy.journal.recovery import evidence_of, recover
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import NOTHING, Evidence, Seen, ServedAs, Usage, UsageSource
from tests.golden.reading import FourCharacters, Tokens
from tests.journal.records import exchange_id, opened


class Asked(FourCharacters):
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def completion(self, *of: Any, completion_tokens_max: int | None, bytes_seen: int, counted: None) -> Tokens:
        self.asked.append((*of, completion_tokens_max, bytes_seen))
        return super().completion(
            *of, completion_tokens_max=completion_tokens_max, bytes_seen=bytes_seen, counted=counted
        )


class Slots(dict[int, Progress]):
    def read(self, index: int) -> Progress | None:
        return self.get(index)


BLANK = Progress(exchange_id(1), 0, 0, 0, 0.0, Evidence(), None)


def recovered(of: Opened, progress: Progress | None, estimator: Any = None) -> UsageRecord:
    slots = Slots({} if progress is None else {of.slot: progress})
    [record] = recover([of], slots, estimator or FourCharacters())
    assert (record.opened, record.outcome, record.details["recovered"]) == (of, Outcome.CRASHED, True)
    return record


def noted(**changes: Any) -> Progress:
    fields: dict[str, Any] = {
        "events": 40,
        "bytes": 12_000,
        "noted_events": 40,
        "noted_at": opened(1).started_at + 2.5,
        "evidence": Evidence(text_events=39, chars_latin=160),
    }
    return replace(BLANK, **{**fields, **changes})


def test_nothing_delivered_costs_nothing() -> None:
    record = recovered(opened(1), BLANK)
    assert (record.reading, record.bills, record.events, record.bytes) == (NOTHING, BillableParts.NOTHING, 0, 0)
    assert record.details == {"recovered": True, "situation": "crashed_empty"}
    assert record.duration_ms == 0.0


@pytest.mark.parametrize(
    ("evidence", "completion"), [(Evidence(), 20), (Evidence(text_events=2, chars_latin=40), 30)], ids=["audio", "both"]
)
def test_audio_that_was_delivered_is_never_free(evidence: Evidence, completion: int) -> None:
    """It is counted by its length while it comes, and its transcript is text."""
    counted = Usage(audio_prompt_tokens=7, audio_completion_tokens=20)
    record = recovered(opened(1), noted(events=2, noted_events=2, evidence=evidence, usage=counted))
    usage = record.reading.usage
    assert (usage.completion_tokens, usage.audio_completion_tokens, usage.audio_prompt_tokens) == (completion, 20, 7)
    assert (record.reading.source, record.bills) == (UsageSource.ESTIMATED, BillableParts.EVERYTHING)


@pytest.mark.parametrize("progress", [None, replace(noted(), exchange_id=exchange_id(2))])
def test_a_slot_of_somebody_else_says_nothing(progress: Progress | None) -> None:
    record = recovered(opened(1), progress)
    assert (record.reading, record.bills, record.events, record.bytes) == (NOTHING, BillableParts.NOTHING, 0, 0)
    assert record.details["progress"] == "missing"


@pytest.mark.parametrize("after", [0, 1, 2])
def test_usage_that_the_provider_reported_is_taken(after: int) -> None:
    usage = Usage(9, None, 40, None, 49)
    record = recovered(opened(1), noted(events=40 + after, usage=usage))
    assert (record.reading.usage, record.reading.source, record.reading.estimator) == (
        usage,
        UsageSource.REPORTED,
        None,
    )
    assert (record.bills, record.events, record.bytes) == (BillableParts.EVERYTHING, 40 + after, 12_000)
    assert record.duration_ms == 2_500.0


def test_an_interim_usage_is_a_lower_bound_of_what_came_after_it() -> None:
    record = recovered(opened(1), noted(events=80, usage=Usage(9, 4, 40, None, 49)))
    assert record.reading.usage == Usage(9, 4, 80, None, 89)
    assert record.reading.source is UsageSource.ESTIMATED
    assert record.details["interim_usage"] is True
    record = recovered(opened(1), noted(events=80, usage=Usage(9, 4, 500, None, 509)))
    assert record.reading.usage.completion_tokens == 500


def test_half_a_usage_is_completed() -> None:
    record = recovered(opened(1), noted(usage=Usage(completion_tokens=41)))
    assert record.reading.usage == Usage(17, None, 41, None, 58)
    record = recovered(opened(1), noted(usage=Usage(prompt_tokens=9)))
    assert record.reading.usage == Usage(9, None, 40, None, 49)
    assert record.reading.source is UsageSource.ESTIMATED


def test_searches_that_were_seen_are_billed_without_a_usage() -> None:
    record = recovered(opened(1), noted(usage=Usage(searches=2)))
    assert (record.reading.usage.searches, record.reading.source) == (2, UsageSource.ESTIMATED)
    assert record.reading.usage.prompt_tokens
    assert "interim_usage" not in record.details


def test_what_a_drain_had_read_is_not_bounded_by_what_was_delivered() -> None:
    estimator = Asked()
    progress = noted(events=3, bytes=90, noted_events=2_000, evidence=Evidence(text_events=1_999, chars_latin=9_000))
    record = recovered(opened(1), progress, estimator)
    assert estimator.asked[0][3] >= 9_000
    assert (record.events, record.bytes) == (3, 90)


def test_without_usage_the_evidence_is_scaled_to_what_was_delivered() -> None:
    estimator = Asked()
    record = recovered(opened(1), noted(events=50, bytes=15_000), estimator)
    assert estimator.asked == [
        ("electron/electron-2", Evidence(text_events=49, chars_latin=200), None, 15_000),
    ]
    assert record.reading.usage == Usage(17, None, 50, None, 67)
    assert (record.reading.estimator, record.reading.expected_error) == ("four-1", 0.2)
    assert record.details == {
        "recovered": True, "noted_events": 40, "evidence": {"text_events": 49, "chars_latin": 200},
        "situation": "crashed",
    }  # fmt: skip


def test_before_the_first_note_events_and_bytes_speak() -> None:
    record = recovered(opened(1), replace(BLANK, events=10, bytes=2_600))
    assert record.reading.usage.completion_tokens == 25  # 100 characters beyond the framing of ten events
    assert record.reading.source is UsageSource.ESTIMATED
    assert recovered(opened(1), replace(BLANK, events=10, bytes=2_000)).reading.usage.completion_tokens == 10
    assert recovered(opened(1), replace(BLANK, events=0, bytes=1_250)).reading.usage.completion_tokens == 313


def test_a_cap_is_said() -> None:
    record = recovered(opened(1, completion_tokens_max=5), noted())
    assert (record.reading.usage.completion_tokens, record.reading.capped) == (5, True)


@pytest.mark.parametrize(("echoes", "tokens", "exceeded"), [(UNSET, 407, True), (True, 1, False)])
def test_what_was_seen_is_not_capped_by_what_was_asked(echoes: Any, tokens: int, exceeded: bool) -> None:
    """Unless the answer repeats its prompt, so that not all of it was generated."""
    seen = Evidence(text_events=406, chars_latin=2030)
    progress = noted(evidence=seen, noted_events=406, events=406, bytes=90_000)
    reading = recovered(opened(1, completion_tokens_max=1, echoes=echoes), progress, Estimator()).reading
    assert (reading.usage.completion_tokens, reading.limit_exceeded, reading.capped) == (tokens, exceeded, not exceeded)


def test_hidden_reasoning_is_said_of_what_was_estimated() -> None:
    class Hiding(FourCharacters):
        def completion(self, *_of: object, **_limits: object) -> Tokens:
            return Tokens(240, 0.5, capped=True, hidden=200, limit_exceeded=True)

    for usage in (None, Usage(prompt_tokens=9)):
        reading = recovered(opened(1), noted(usage=usage), Hiding()).reading
        assert (reading.usage.completion_tokens, reading.hidden_tokens, reading.capped) == (240, 200, True)
    counted = recovered(opened(1), noted(usage=Usage(completion_tokens=41)), Hiding()).reading
    assert (counted.usage.completion_tokens, counted.hidden_tokens, counted.capped) == (41, None, False)
    assert counted.expected_error == 0.07  # of the prompt: it alone was estimated
    interim = recovered(opened(1), noted(events=80, usage=Usage(9, 4, 40, None, 49)), Hiding()).reading
    assert (interim.usage.completion_tokens, interim.hidden_tokens) == (240, 200)


def test_the_provider_may_have_its_own_line_in_the_policy() -> None:
    assert recovered(opened(1, bill={"crashed": "nothing"}), noted()).bills is BillableParts.NOTHING


def test_each_exchange_has_one_record_in_order() -> None:
    unfinished = [opened(number, slot=number) for number in range(5)]
    records = recover(unfinished, Slots(), FourCharacters())
    assert [record.opened for record in records] == unfinished


COUNTS = st.integers(0, 10_000)


@given(st.lists(COUNTS, min_size=8, max_size=8), COUNTS, st.integers(1, 10_000), st.integers(0, 10**7))
def test_evidence_never_shrinks_by_scaling(counts: list[int], at: int, more: int, size: int) -> None:
    evidence = Evidence(*counts)
    whole = evidence_of(noted(evidence=evidence, noted_events=at, events=at + more, bytes=size))
    assert whole.chars >= evidence.chars
    assert not whole.empty


def test_events_without_text_stay_without_text() -> None:
    record = recovered(opened(1), noted(events=1, bytes=300, noted_events=1, evidence=Evidence()))
    assert record.reading.usage.completion_tokens == 0


def test_a_clock_that_went_back_makes_no_negative_duration() -> None:
    assert recovered(opened(1), noted(noted_at=1.0)).duration_ms == 0.0


def test_what_was_seen_of_an_answer_is_in_its_entry() -> None:
    seen = Seen(ServedAs("priority", "fast"), images=2, unknown_items=1, flags=("usage_invalid",))
    line = entry(recovered(opened(1), noted(seen=seen)))
    assert (line.details["service_tier"], line.details["speed"], line.details["flags"]) == (
        "priority", "fast", ["usage_invalid"],
    )  # fmt: skip
    assert (line.details["unread"], line.details["beside_usage"]) == (["output.other"], {"output.other": 1})
    assert line.details["other_models"] == [{"model": "other", "usage": {"images": 2}}]
    assert {"tier:priority", "speed:fast", "model:other"} <= {*line.details["unpriced_units"]}


def test_a_reported_count_is_compared_with_what_was_delivered() -> None:
    evidence = Evidence(text_events=40, chars_latin=4_000, blanks=600)
    record = recovered(opened(1), noted(evidence=evidence, usage=Usage(9, None, 0, None, 9)))
    assert record.details["refuted"] == {"completion_tokens": {"reported": 0, "at_least": 27}}
    assert (record.reading.source, record.reading.usage.completion_tokens) == (UsageSource.REPORTED, 0)
