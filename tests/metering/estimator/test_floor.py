"""What was seen: an estimate is never below its events with text, and no limit of a request makes less of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.estimator.completion import Completions, counters
from proxy.metering.estimator.estimate import Estimate, Estimator
from proxy.metering.estimator.floor import Floor
from proxy.metering.profile import Counted, Profile
from proxy.metering.usage import Evidence, Usage
from tests.metering.fixtures import chunk, fed, reading_of, sse


def seen(*texts: str) -> Evidence:
    """What a stream of these events gives."""
    return fed(OPENAI_CHAT.stream_meter(), [sse(*(chunk({"content": text}) for text in texts))]).evidence


def estimated(estimator: Estimator, evidence: Evidence, most: int | None = None) -> Estimate:
    return estimator.completion("p/m", evidence, completion_tokens_max=most, bytes_seen=1 << 20)


def taught(tokens_per_event: float, *, events: int = 100, chars: int = 4, answers: int = 40) -> Estimator:
    """By streams with so many tokens in an event."""
    estimator = Estimator()
    evidence = Evidence(text_events=events, chars_latin=events * chars, blanks=events)
    for _ in range(answers):
        estimator.learn("p/m", evidence=evidence, prompt=None, usage=Usage(1, None, round(events * tokens_per_event)))
    return estimator


def test_406_events_are_not_one_token_because_one_was_asked_for() -> None:
    evidence = seen(*(f" word{number}" for number in range(406)))
    found = estimated(Estimator(), evidence, 1)
    assert found.limit_exceeded
    assert not found.capped
    assert found.tokens == estimated(Estimator(), evidence).tokens >= 406


@pytest.mark.parametrize(
    ("texts", "most", "exceeded"),
    [
        ([" word"] * 20, 19, True),
        ([" word"] * 20, 20, False),
        (["\n"] * 58, 20, True),
        (["letters" * 100] * 3, 80, True),  # no token has more letters on average, whatever the events
        (["letters" * 100] * 3, 300, False),
        ([" " * 5000 + "-" * 5000 + "x"], 10, False),  # a few tokens in some tokenizers
        (["水" * 100], 20, True),
        (["水" * 100], 40, False),
    ],
)
def test_a_limit_caps_until_it_is_certain_that_it_was_not_kept(texts: list[str], most: int, exceeded: bool) -> None:
    found = estimated(Estimator(), seen(*texts), most)
    assert found.limit_exceeded == exceeded
    assert (found.tokens > most) == exceeded
    assert found.capped == (not exceeded and found.tokens < estimated(Estimator(), seen(*texts)).tokens)


def test_tool_arguments_prove_it_too() -> None:
    call = Evidence(tool_events=1, tool_calls=1, tool_chars=4000)
    assert estimated(Estimator(), call, 100).tokens > 1000
    assert estimated(Estimator(), call, 600).tokens == 600


def test_the_reading_of_a_whole_exchange_says_so() -> None:
    words = fed(OPENAI_CHAT.stream_meter(), [sse(*(chunk({"content": " word"}) for _ in range(406)))])
    found = reading_of(words, completion_tokens_max=1, bytes_seen=1 << 16)
    assert (found.limit_exceeded, found.capped) == (True, False)
    assert found.usage.completion_tokens is not None
    assert found.usage.completion_tokens >= 406


@pytest.mark.parametrize(("most", "tokens"), [(0, 1), (5, 5), (None, 21)])
def test_an_echo_of_the_prompt_proves_nothing(most: int | None, tokens: int) -> None:
    found = estimated(Estimator(), seen(*[" word"] * 20), most)
    assert found.held_to(most).tokens == tokens
    assert not found.held_to(most).limit_exceeded
    said = OPENAI_COMPLETIONS.facts({"model": "m", "prompt": "x", "max_tokens": 5, "echo": True})
    assert (said.echoes, said.completion_tokens_max) == (True, 5)
    assert not OPENAI_COMPLETIONS.facts({"model": "m", "prompt": "x", "max_tokens": 5}).echoes
    words = sse(*({"choices": [{"index": 0, "text": " word"}]} for _ in range(20)))
    read = reading_of(fed(OPENAI_COMPLETIONS.stream_meter(), [words]), completion_tokens_max=most, echoes=True)
    assert (read.usage.completion_tokens, read.limit_exceeded) == (tokens, False)


def test_18_events_are_18_tokens_of_a_model_with_a_token_an_event() -> None:
    """Though its usual events have more characters, by which such an answer would be 11 tokens."""
    estimator = Estimator()
    for events in range(20, 60):
        usual = Evidence(text_events=events, chars_latin=20 * events, blanks=4 * events)
        estimator.learn("p/m", evidence=usual, prompt=None, usage=Usage(1, None, round(2.2 * events)))
    short = Evidence(text_events=18, chars_latin=18 * 7, blanks=18)
    by_characters = Completions.restored(estimator.export()["completions"]["p/m"])
    assert by_characters is not None
    assert by_characters.visible(counters(short)) < 18
    assert estimated(estimator, short).tokens == 18


def test_its_own_vocabulary_knows_better_until_the_model_has_told() -> None:
    evidence = Evidence(text_events=100, chars_latin=400, blanks=100)
    counted = Counted(Profile(40, 400), Profile(), own=True)
    asked: dict[str, Any] = {"completion_tokens_max": None, "bytes_seen": 9999, "counted": counted}
    assert Estimator().completion("p/m", evidence, **asked).tokens == 40
    assert taught(1.0).completion("p/m", evidence, **asked).tokens == 100


@given(st.integers(1, 400), st.integers(1, 4000), st.integers(1, 2000), st.booleans())
def test_no_count_is_below_the_events_of_a_model_with_a_token_an_event(
    events: int, chars: int, tokens: int, own: bool
) -> None:
    counted = Counted(Profile(tokens, chars, letters=chars), Profile(), own)
    evidence = Evidence(text_events=events, chars_latin=chars)
    found = taught(1.0).completion("p/m", evidence, completion_tokens_max=None, bytes_seen=9999, counted=counted)
    assert found.tokens >= min(events, chars)


def test_a_model_that_reports_less_than_a_token_an_event_is_taken_at_its_word() -> None:
    assert estimated(taught(0.5), Evidence(text_events=100, chars_latin=400, blanks=100)).tokens == pytest.approx(50, 2)
    one_odd = taught(1.5)
    one_odd.learn("p/m", evidence=Evidence(text_events=100, chars_latin=400), prompt=None, usage=Usage(1, None, 50))
    assert one_odd.export()["floors"]["p/m"][-1] == 0.5


def test_the_last_answers_count_and_short_ones_do_not() -> None:
    floor = Floor()
    floor.learn(Evidence(text_events=7, chars_latin=70), 1)
    assert floor.row() == []
    for tokens in (5, *[30] * 15):
        floor.learn(Evidence(text_events=10, chars_latin=90), tokens)
    evidence = Evidence(text_events=40, chars_latin=400)
    assert floor.tokens(evidence) == 20
    floor.learn(Evidence(text_events=10, chars_latin=90), 30)
    assert floor.tokens(evidence) == 40


def test_what_was_hidden_is_no_token_of_an_event() -> None:
    estimator = Estimator()
    evidence = Evidence(text_events=100, chars_latin=400)
    estimator.learn("p/m", evidence=evidence, prompt=None, usage=Usage(1, None, 550, 500))
    assert estimator.export()["floors"]["p/m"] == [0.5]


ROWS = st.lists(st.floats(0, 1), max_size=16)


@given(ROWS)
def test_it_is_restored_as_it_was(row: list[float]) -> None:
    again = Floor.restored(row)
    assert again is not None
    assert again.row() == row


@pytest.mark.parametrize("row", [[1.1], [-0.1], [0.5] * 17])
def test_no_other_state_is_restored(row: Any) -> None:
    assert Floor.restored(row) is None
    exported = {"version": Estimator.VERSION, "floors": {"p/m": row}}
    assert "floors" not in Estimator.restore(exported).export()


def test_state_of_a_version_without_floors_is_restored() -> None:
    exported = taught(1.0).export()
    del exported["floors"]
    again = Estimator.restore(exported)
    assert again.export()["completions"] == exported["completions"]
    assert "floors" not in again.export()


@given(st.integers(0, 500), st.integers(0, 5000), ROWS)
def test_it_is_never_more_than_was_seen(events: int, chars: int, row: list[float]) -> None:
    found = Floor(row).tokens(Evidence(text_events=events, chars_latin=chars))
    assert 0 <= found <= min(events, chars)
