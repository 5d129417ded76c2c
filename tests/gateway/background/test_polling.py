"""The parts of asking for an answer that is made in the background: when, and what was seen of it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from proxy.foundation.secret import Secret
from proxy.gateway.background.partial_result import (
    NO_RESULT,
    PartialResult,
    decoded,
    encoded,
    larger,
    partial_result,
    scaled,
)
from proxy.gateway.background.polling import Pace, Polling, PollResult, Step
from proxy.gateway.background.stored_answer import StoredAnswer
from proxy.gateway.upstream.provider import Provider
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.held_text import AnswerText, TextKind, TextRoom
from proxy.metering.usage import Evidence
from proxy.settings import ProviderSettings
from tests.metering.fixtures import read_answer

PACE = Pace()


metered = partial(read_answer, OPENAI_RESPONSES)
USED = b'"usage":{"input_tokens":11,"output_tokens":7}'
TEXT = b'"output":[{"type":"message","content":[{"text":"water"}]}]'
RUNS = PollResult(metered(b'{"id":"r","status":"in_progress","output":[]}'))
ANSWER = metered(b'{"id":"r","status":"completed",' + TEXT + b"," + USED + b"}")
ENDED = PollResult(ANSWER)
STOPPED = PollResult(metered(b'{"id":"r","status":"cancelled","output":[],"usage":null}'))
FAILS, GONE, LATER = PollResult(), PollResult(gone=True), PollResult(retry_after_s=40.0)


@pytest.mark.parametrize(
    ("body", "ended", "in_background"),
    [
        (b'{"status":"queued","output":[]}', False, True),
        (b'{"status":"in_progress","output":[{"type":"message"}]}', False, True),
        (b'{"status":"queued","background":true}', False, True),
        (b'{"status":"completed","output":[],"background":true}', True, True),
        (b'{"status":"incomplete","output":[],"background":false}', True, False),
        (b'{"status":"queued","output":[],"background":false}', False, True),
        (b'{"status":"failed","output":[],"error":{"code":"x"}}', True, None),
        (b'{"status":"cancelled","output":[]}', True, None),
        (b'{"status":"pending","output":[]}', False, None),
        (b'{"status":"running",' + TEXT + b"}", False, None),
        (b'{"status":"done",' + TEXT + b"," + USED + b"}", True, None),
        (b"{" + TEXT + b"}", True, None),
        (b'{"output":[]}', False, None),
        (b"{" + USED + b"}", False, None),
        (b'{"status":7}', False, None),
        (b"no JSON", False, None),
        (b"", False, None),
    ],
)
def test_what_an_answer_says_of_its_end(body: bytes, ended: bool, in_background: bool | None) -> None:
    read = metered(body)
    assert (read.answer_ended, read.in_background) == (ended, in_background)


@pytest.mark.parametrize(
    ("kinds", "ended"),
    [
        (["created", "queued", "in_progress", "output_text.delta"], False),
        (["created", "completed"], True),
        (["created", "incomplete"], True),
        (["created", "failed"], True),
        (["created", "cancelled"], True),
        (["created", "error"], False),
        ([], False),
    ],
)
def test_what_a_stream_says_of_its_end(kinds: list[str], ended: bool) -> None:
    meter = OPENAI_RESPONSES.stream_meter()
    for kind in kinds:
        name = "error" if kind == "error" else f"response.{kind}"
        meter.feed(b'data: {"type":"%b","response":{"id":"r","background":true}}\n\n' % name.encode())
    meter.feed(b"data: [DONE]\n\n")
    meter.fold()
    assert meter.tally.in_background is (True if set(kinds) - {"error"} else None)
    assert meter.close().answer_ended is ended


def steps(looks: list[tuple[float, PollResult]], until: float = 1000.0, *, stopped: bool = False) -> list[Step]:
    polling = Polling(until, PACE, stopped=stopped)
    return [polling.next(at, look) for at, look in looks]


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        ([(1, RUNS), (2, FAILS), (3, ENDED)], Step.SETTLE),
        ([(1, STOPPED)], Step.WAIT),
        ([(1, STOPPED), (3, STOPPED)], Step.SETTLE),
        ([(1, STOPPED), (3, FAILS)], Step.SETTLE),
        ([(1, STOPPED), (3, ENDED)], Step.SETTLE),
        ([(1, GONE), (60, GONE)], Step.WAIT),
        ([(1, GONE), (61, GONE)], Step.NOT_FOUND),
        ([(1, GONE), (50, RUNS), (61, GONE)], Step.WAIT),
        ([(1, GONE), (50, FAILS), (61, GONE)], Step.WAIT),
        ([(999, RUNS)], Step.WAIT),
        ([(1000, RUNS)], Step.STOP),
        ([(1000, FAILS), (1059, FAILS)], Step.WAIT),
        ([(1000, RUNS), (1060, RUNS)], Step.TOO_LONG),
        ([(1000, RUNS), (1060, ENDED)], Step.SETTLE),
        ([(5000, ENDED)], Step.SETTLE),
    ],
)
def test_steps(looks: list[tuple[float, PollResult]], last: Step) -> None:
    assert steps(looks)[-1] is last
    assert set(steps(looks)[:-1]) <= {Step.WAIT, Step.STOP}


def test_who_was_asked_to_stop_is_not_asked_again() -> None:
    assert steps([(1000.0, RUNS)], stopped=True) == [Step.TOO_LONG]


def test_pauses_grow_and_are_bounded() -> None:
    polling = Polling(10_000.0, PACE)
    pauses = [polling.pause_s]
    for at in range(20):
        polling.next(float(at), RUNS)
        pauses.append(polling.pause_s)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 20.0)
    polling.next(30.0, LATER)
    assert polling.pause_s == 40.0, "the provider asks for it"
    polling.next(31.0, PollResult(retry_after_s=1e9))
    assert polling.pause_s == 300.0
    polling.next(9_990.0, RUNS)
    assert polling.pause_s == 10.0, "the limit is kept"


@given(st.lists(st.tuples(st.sampled_from([RUNS, FAILS, GONE, LATER, STOPPED, ENDED]), st.floats(0, 2)), max_size=400))
def test_it_always_ends(looks: list[tuple[PollResult, float]]) -> None:
    """However a provider answers: a fixed time after the limit at the latest."""
    polling, now = Polling(500.0, PACE), 0.0
    for look, late_s in [*looks, *[(RUNS, 0.0)] * 1000]:
        now += polling.pause_s + late_s
        step = polling.next(now, look)
        assert 0 < polling.pause_s <= PACE.asked_pause_s_max
        if step not in (Step.WAIT, Step.STOP):
            break
    assert step in (Step.SETTLE, Step.NOT_FOUND, Step.TOO_LONG)
    assert now <= 500.0 + PACE.stopping_s + 2 * PACE.asked_pause_s_max


counts = st.integers(0, 1000)
evidences = st.builds(Evidence, text_events=counts, chars_latin=counts, chars_wide=counts)
sightings = st.builds(PartialResult, evidences, st.sampled_from([None, ENDED.metered, STOPPED.metered]))


@given(sightings, sightings)
def test_nothing_that_was_seen_is_lost(one: PartialResult, other: PartialResult) -> None:
    both = one.merged(other)
    assert both.evidence.chars >= max(one.evidence.chars, other.evidence.chars)
    assert both.usage_known == (one.usage_known or other.usage_known)
    assert (both.ended is None) == (one.ended is None and other.ended is None)
    assert both.merged(one) == both.merged(other) == both, "it may be told again"
    assert decoded(encoded(both)) == both


@pytest.mark.parametrize("note", [None, b"", b"[]", b"{", b'{"evidence":7}', b'{"ended":{"usage":"x"}}'])
def test_an_unreadable_note_says_nothing(note: bytes | None) -> None:
    assert decoded(note) == NO_RESULT


@given(evidences, st.integers(0, 50), st.integers(-3, 50))
def test_what_a_stream_did_not_repeat_counts_like_the_rest(evidence: Evidence, events: int, before: int) -> None:
    whole = scaled(evidence, events, before)
    assert whole is not evidence
    assert whole.chars >= evidence.chars
    if events and before > 0:
        assert whole.text_events == -(-evidence.text_events * (events + before) // events)
    assert larger(whole, evidence).chars == whole.chars


def test_a_usage_that_output_followed_is_no_end() -> None:
    """It came with the stream that was left; others have seen more since."""
    left = structs.replace(metered(b'{"status":"in_progress",' + TEXT + b"," + USED + b"}"), answer_ended=False)
    more = PartialResult(Evidence(text_events=90, chars_latin=400))
    assert (more.ending(left).reported_completion, more.ending(left).evidence.text_events) == (None, 90)
    assert PartialResult(left.evidence).ending(left).reported_completion == 7
    assert more.ending(ANSWER).reported_completion == 7, "which the end told"


def test_no_text_is_passed_on() -> None:
    held = AnswerText(TextRoom(answer_bytes_max=100, bytes_max=100))
    held.add(TextKind.TEXT, "water")
    seen = partial_result(structs.replace(ANSWER, held=held))
    assert seen.ended is not None
    assert seen.ended.held is None
    assert b"water" not in encoded(seen)


@pytest.mark.parametrize(
    ("method", "after", "line"),
    [
        ("GET", "", b"GET /openai/v1/responses/resp_%2F1?api-version=preview HTTP/1.1\r\n"),
        ("POST", "/cancel", b"POST /openai/v1/responses/resp_%2F1/cancel?api-version=preview HTTP/1.1\r\n"),
    ],
)
def test_it_is_asked_for_as_it_was_made(method: str, after: str, line: bytes) -> None:
    """At Azure, too: by its path, version and key."""
    (dialect,) = (one for one in DIALECTS if one.name == "azure.responses_v1")
    settings = ProviderSettings(name="p", base_url="https://x.test/openai", api_key=Secret("sk-1"))
    stored = StoredAnswer(
        Provider.of(settings, write_stall_s=60), dialect, "resp_/1", query="api-version=preview", headers="A: b\r\n"
    )
    request = stored.request(method, after)
    assert request.startswith(line)
    assert b"\r\napi-key: sk-1\r\n" in request
    assert request.endswith(b"A: b\r\n\r\n")
