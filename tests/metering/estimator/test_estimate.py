"""The estimator: capped, never 0 for something, learns without being led astray; and what a reading says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from proxy.metering.estimator import state as state_module
from proxy.metering.estimator.estimate import RUNNING_COUNT, VERSION, Estimate, Estimator
from proxy.metering.metered import Metered
from proxy.metering.usage import NOTHING, TOKENS_MAX, Evidence, PromptEvidence, Reading, Usage, UsageSource
from tests.metering.fixtures import reading_of

TEXT = Evidence(text_events=100, chars_latin=420)


def roomy(estimator: Estimator, key: str = "p/m", evidence: Evidence = TEXT) -> Estimate:
    """What it says where no cap is in the way."""
    return estimator.completion(key, evidence, completion_tokens_max=None, bytes_seen=1 << 20)


def tokens(estimator: Estimator, evidence: Evidence = TEXT) -> int:
    return roomy(estimator, evidence=evidence).tokens


def test_priors_are_plausible() -> None:
    estimator = Estimator()
    assert tokens(estimator) == 101
    assert tokens(estimator, Evidence(chars_wide=100)) == 101
    assert tokens(estimator, Evidence(tool_calls=1, tool_chars=34)) == 20
    assert estimator.prompt_tokens("p/m", PromptEvidence(messages=1, chars_latin=44)) == 17


LONG_EVENTS = Evidence(text_events=10, chars_latin=440)


def test_caps() -> None:
    estimator = Estimator()
    assert estimator.completion("p/m", LONG_EVENTS, completion_tokens_max=60, bytes_seen=9999).tokens == 60
    assert estimator.completion("p/m", TEXT, completion_tokens_max=None, bytes_seen=60).tokens == 60
    assert estimator.completion("p/m", LONG_EVENTS, completion_tokens_max=60, bytes_seen=9999).capped
    assert not estimator.completion("p/m", TEXT, completion_tokens_max=500, bytes_seen=9999).capped
    assert estimator.completion("p/m", Evidence(), completion_tokens_max=50, bytes_seen=99).tokens == 0
    assert estimator.completion("p/m", Evidence(tool_calls=1), completion_tokens_max=None, bytes_seen=0).tokens == 1


EVIDENCE = st.builds(Evidence, **{f.name: st.integers(0, 10**7) for f in dataclasses.fields(Evidence)})
COUNTS = st.none() | st.integers(0, TOKENS_MAX)
USAGES = st.builds(Usage, **dict.fromkeys(Usage.__struct_fields__, COUNTS))
KEYS = st.sampled_from(["p/m", "q/m", "q/x/m", "q/n", ""])
ANSWERS = st.lists(st.tuples(KEYS, EVIDENCE, USAGES), max_size=12)


def taught(answers: list[tuple[str, Evidence, Usage]]) -> Estimator:
    estimator = Estimator()
    for key, evidence, usage in answers:
        error = estimator.learn(key, evidence=evidence, prompt=PromptEvidence(1, 40), usage=usage)
        assert error is None or error > -1
    return estimator


@given(ANSWERS, KEYS, EVIDENCE, st.none() | st.integers(1, 10**6), st.integers(0, 10**8))
def test_an_estimate_is_always_possible(
    answers: list[tuple[str, Evidence, Usage]], key: str, evidence: Evidence, most: int | None, bytes_seen: int
) -> None:
    found = taught(answers).completion(key, evidence, completion_tokens_max=most, bytes_seen=bytes_seen)
    assert (0 if evidence.empty else 1) <= found.tokens <= max(bytes_seen, 1) + (found.hidden or 0)
    assert found.limit_exceeded or found.tokens <= (most or TOKENS_MAX * 10)
    assert 0 <= (found.hidden or 0) <= found.tokens
    assert 0 <= found.expected_error <= 2
    untaught = Estimator().completion(key, evidence, completion_tokens_max=most, bytes_seen=bytes_seen)
    assert untaught.tokens <= max(bytes_seen, 1)
    assert untaught.hidden is None


@given(ANSWERS, KEYS, EVIDENCE)
def test_what_was_learned_survives_being_written_down(
    answers: list[tuple[str, Evidence, Usage]], key: str, evidence: Evidence
) -> None:
    estimator = taught(answers)
    again = Estimator.restore(json.loads(json.dumps(estimator.export())))
    assert again.export() == estimator.export()
    for one in (estimator, again):
        one.learn(key, evidence=evidence, prompt=None, usage=Usage(1, None, 90))
    assert again.export() == estimator.export()
    assert roomy(again, key, evidence) == roomy(estimator, key, evidence)


SHAPES = st.sampled_from(
    [
        TEXT,
        Evidence(text_events=10, chars_latin=420),
        Evidence(text_events=40, chars_wide=60, chars_latin=20),
        Evidence(tool_events=20, tool_calls=1, tool_chars=80),
        Evidence(text_events=60, chars_latin=240, reasoning_chars=200, tool_events=1, tool_calls=1, tool_chars=40),
    ]
)


@given(SHAPES, st.floats(0.6, 3))
def test_learns_what_is_constant(evidence: Evidence, factor: float) -> None:
    estimator = Estimator()
    true = round(tokens(estimator, evidence) * factor)
    for _ in range(150):
        error = estimator.learn("p/m", evidence=evidence, prompt=None, usage=Usage(1, None, true))
    assert tokens(estimator, evidence) == pytest.approx(true, rel=0.04, abs=1)
    assert error == pytest.approx(0, abs=0.05)


@given(SHAPES, st.integers(0, 60), st.integers(1, TOKENS_MAX))
def test_one_outlier_moves_it_little(evidence: Evidence, before: int, outlier: int) -> None:
    estimator = Estimator()
    usual = tokens(estimator, evidence)
    for _ in range(before):
        estimator.learn("p/m", evidence=evidence, prompt=None, usage=Usage(1, None, usual))
    estimator.learn("p/m", evidence=evidence, prompt=None, usage=Usage(1, None, outlier))
    moved = tokens(estimator, evidence) / usual
    assert 0.2 < moved < 2.5  # the very first answer that told: a sixth of what was said moves it to a quarter
    if before >= 20:
        assert 0.8 < moved < 1.25


def test_hidden_reasoning_is_learned_flagged_and_unsure() -> None:
    estimator, seen = Estimator(), Evidence(text_events=20, chars_latin=84)
    for _ in range(20):
        estimator.learn("p/m", evidence=seen, prompt=None, usage=Usage(1, None, 221, 200, 222))
    found = roomy(estimator, "p/m", seen)
    assert found == Estimate(221, round(0.5 * 200 / 221, 4), False, 200)
    elsewhere = roomy(estimator, "q/vendor/m", seen)
    assert (elsewhere.tokens, elsewhere.hidden) == (221, 200)
    assert roomy(estimator, "p/other", seen).hidden is None
    # What was hidden took no bytes; the request's own limit holds for both.
    assert estimator.completion("p/m", seen, completion_tokens_max=None, bytes_seen=10) == Estimate(
        210, round(0.5 * 200 / 210, 4), True, 200
    )
    assert estimator.completion("p/m", seen, completion_tokens_max=100, bytes_seen=999).tokens == 100


NAMED = [
    ("openai/o3", True), ("r/openai/o4-mini-2025-04-16", True), ("openai/gpt-5-mini", True), ("openai/gpt-5.2", True),
    ("g/gemini-2.5-pro", True), ("g/gemini-3-flash-preview", True), ("x/grok-4-fast", True), ("openai/gpt-4o", False),
    ("openai/gpt-5-chat-latest", False), ("openai/gpt-5.2-chat-latest", False), ("g/gemini-2.5-flash-lite", False),
    ("x/grok-4-fast-non-reasoning", False), ("a/olmo-2", False), ("a/o1000", False), ("a/not-gpt-5", False),
]  # fmt: skip


@pytest.mark.parametrize(("key", "hides"), NAMED)
def test_a_model_known_to_hide_is_flagged_before_it_told_how_much(key: str, hides: bool) -> None:
    naive = roomy(Estimator())
    found = roomy(Estimator(), key)
    assert found.tokens == naive.tokens  # nobody is billed what no model told
    assert (found.hidden, found.expected_error) == ((0, 0.9) if hides else (None, naive.expected_error))
    silent = roomy(Estimator(), key, Evidence())
    assert (silent.tokens, silent.hidden) == (0, 0 if hides else None)


def test_a_model_that_told_it_hides_nothing_is_not_flagged() -> None:
    estimator = Estimator()
    for _ in range(5):
        assert roomy(estimator, "p/gpt-5.4").hidden == 0
        estimator.learn("q/gpt-5.4", evidence=TEXT, prompt=None, usage=Usage(1, None, 101, 0, 102))
    assert roomy(estimator, "p/gpt-5.4").hidden is None


def test_a_model_that_streams_what_another_hides_is_not_led_astray() -> None:
    estimator, seen = Estimator(), Evidence(text_events=20, chars_latin=84)
    estimator.learn("p/m", evidence=seen, prompt=None, usage=Usage(1, None, 221, 200, 222))
    for _ in range(200):
        estimator.learn("q/m", evidence=seen, prompt=None, usage=Usage(1, None, 21, 0, 22))
    assert roomy(estimator, "q/m", seen).tokens <= 23


def learn(estimator: Estimator, factor: float, times: int) -> None:
    for _ in range(times):
        estimator.learn(
            "p/m", evidence=TEXT, prompt=PromptEvidence(messages=5), usage=Usage(46, None, round(101 * factor))
        )


def test_learns_a_model_and_knows_its_error() -> None:
    estimator = Estimator()
    naive = roomy(estimator).expected_error
    learn(estimator, 1.5, 40)
    assert abs(tokens(estimator) - 151.5) < 12
    assert roomy(estimator).expected_error < naive
    assert abs(estimator.prompt_tokens("p/m", PromptEvidence(messages=5)) - 46) < 6
    assert roomy(Estimator(), "p/other").tokens == 101


def test_after_many_answers_a_sample_is_learned_and_fewer_are_counted() -> None:
    estimator = Estimator()
    learn(estimator, 1.0, 1)
    asked = [(estimator.learns("p/m"), estimator.learns_counts("p/m")) for _ in range(200 + 640)]
    assert asked[:200] == [(True, True)] * 200
    assert [sum(one) for one in zip(*asked[200:], strict=True)] == [80, 10]
    assert not [one for one in asked if one == (False, True)], "what is counted is learned"
    assert estimator.learns("p/other"), "each model has its own first answers"


def test_tells_the_error_it_would_have_made() -> None:
    estimator = Estimator()
    error = estimator.learn("p/m", evidence=TEXT, prompt=None, usage=Usage(1, None, 202))
    assert error == pytest.approx(-0.5, abs=0.01)
    assert estimator.learn("p/m", evidence=Evidence(), prompt=None, usage=Usage(1, None, 5)) is None
    assert estimator.learn("p/m", evidence=TEXT, prompt=None, usage=Usage(1, None, 0)) is None
    assert estimator.learn("p/m", evidence=TEXT, prompt=None, usage=Usage(1)) is None


def test_one_stream_moves_little_and_outliers_do_not_lead_astray() -> None:
    estimator = Estimator()
    learn(estimator, 1000, 1)
    assert tokens(estimator) < 115
    estimator = Estimator()
    learn(estimator, 1.0, 30)
    learn(estimator, 1000, 2)
    assert tokens(estimator) < 110
    learn(estimator, 1000, 5000)
    assert tokens(estimator) <= 404


def test_remembers_a_bounded_number_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MODELS_MAX", 3)
    estimator = Estimator()
    for name in ("a", "b", "c", "a", "d"):
        estimator.learn(name, evidence=TEXT, prompt=None, usage=Usage(1, None, 150))
    assert list(estimator.export()["completions"]) == ["c", "a", "d"]


def test_one_dropped_model_loses_all_that_was_learned_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MODELS_MAX", 2)
    estimator = Estimator()
    for name in ("a", "b", "a", "c"):
        prompt = PromptEvidence(messages=1) if name != "b" else None
        estimator.learn(name, evidence=TEXT, prompt=prompt, usage=Usage(9, None, 150))
    exported = estimator.export()
    assert {name: list(exported[name]) for name in ("completions", "floors", "prompts")} == {
        "completions": ["a", "c"], "floors": ["a", "c"], "prompts": ["a", "c"],
    }  # fmt: skip


def test_of_a_file_with_more_models_those_that_answer_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of state once had a limit of its own."""
    estimator = Estimator()
    for name in ("a", "b"):
        estimator.learn(name, evidence=TEXT, prompt=None, usage=Usage(9, None, 150))
    for name in ("c", "d"):
        estimator.learn(name, evidence=Evidence(), prompt=PromptEvidence(messages=1), usage=Usage(9, None, None))
    monkeypatch.setattr(state_module, "MODELS_MAX", 2)
    again = Estimator.restore(estimator.export()).export()
    assert (list(again["completions"]), list(again["prompts"])) == (["a", "b"], [])


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        7,
        [],
        {},
        {"version": "other"},
        {"version": VERSION},
        {"version": VERSION, "completions": [1]},
        *[
            {"version": VERSION, "completions": {"p/m": row}}
            for row in (None, [], [1, 2], [1, "x", 0], [1, float("nan"), 0], [-1, 0, 0], [True, 0, 0])
        ],
    ],
)
def test_restore_takes_anything(garbage: object) -> None:
    assert tokens(Estimator.restore(garbage)) == 101


def test_what_an_older_version_learned_is_left_out() -> None:
    old = {"version": "linear-1", "completions": {"p/m": [20, 0.5, 0.1]}, "prompts": {"p/m": [20, 0.5, 0.1]}}
    assert Estimator.restore(old).export() == Estimator().export()


def test_restored_corrections_are_bounded() -> None:
    restored = Estimator.restore({"version": VERSION, "prompts": {"p/m": [1e300, 1e300, 1e300]}})
    assert restored.prompt_tokens("p/m", PromptEvidence(messages=5)) <= 4 * 23


def metered(usage: Usage | None, evidence: Evidence) -> Metered:
    return Metered(usage, None, evidence, None, None, False, None, 1, (), {})


def read(usage: Usage | None, evidence: Evidence, **more: Any) -> Reading:
    return reading_of(metered(usage, evidence), **more)


def test_what_a_reading_says() -> None:
    reported = Usage(9, 2, 3, 1, 12)
    assert read(reported, TEXT) == Reading(reported, UsageSource.REPORTED)
    assert read(Usage(0, None, 0), Evidence()) == Reading(Usage(0, None, 0), UsageSource.REPORTED)
    assert read(None, Evidence()) == NOTHING
    estimated = read(None, TEXT)
    assert (estimated.usage, estimated.source) == (Usage(7, None, 101, None, 108), UsageSource.ESTIMATED)
    assert (estimated.estimator, estimated.expected_error) == (VERSION, 0.2)
    accepted = read(None, Evidence(), accepted=True)
    assert (accepted.usage, accepted.source) == (Usage(7, None, 0, None, 7), UsageSource.ESTIMATED)


def test_a_providers_own_count_so_far_is_better_than_an_estimate() -> None:
    def cut(so_far: int | None, usage: Usage, completion_tokens_max: int | None = None) -> Reading:
        seen = structs.replace(metered(usage, TEXT), completion_so_far=so_far)
        return reading_of(seen, completion_tokens_max=completion_tokens_max)

    counted = cut(500, Usage(9))
    assert (counted.usage, counted.source) == (Usage(9, None, 500, None, 509), UsageSource.ESTIMATED)
    assert (counted.estimator, counted.expected_error) == (RUNNING_COUNT, 0.0)
    beyond = cut(500, Usage(9), 300)
    assert (beyond.usage.completion_tokens, beyond.limit_exceeded, beyond.capped) == (500, True, False)
    assert not cut(300, Usage(9), 300).limit_exceeded
    assert cut(0, Usage(9)).usage.completion_tokens == 101, "something was generated"
    assert cut(500, Usage(9, None, 20, None, 29)).source is UsageSource.REPORTED


@given(
    ANSWERS, KEYS, EVIDENCE, USAGES | st.none(), st.none() | st.integers(1, 10**6), st.integers(0, 10**8), st.booleans()
)  # fmt: skip
def test_a_reading_is_never_above_what_was_possible(
    answers: list[tuple[str, Evidence, Usage]], key: str, evidence: Evidence, usage: Usage | None, most: int | None,
    bytes_seen: int, accepted: bool,
) -> None:  # fmt: skip
    found = read(
        usage, evidence, estimator=taught(answers), model_key=key, completion_tokens_max=most, bytes_seen=bytes_seen,
        accepted=accepted,
    )  # fmt: skip
    tokens, hidden = found.usage.completion_tokens, found.hidden_tokens or 0
    if usage is not None and usage.completion_tokens is not None:
        assert (tokens, found.hidden_tokens, found.capped) == (usage.completion_tokens, None, False)
    elif tokens is not None:
        assert tokens - hidden <= max(bytes_seen, 1)
        assert 0 <= hidden <= tokens
        assert found.limit_exceeded or tokens <= (most or TOKENS_MAX * 10)
        assert evidence.empty or tokens > 0


def test_a_reading_says_what_it_takes_for_hidden() -> None:
    estimator = Estimator()
    for _ in range(20):
        estimator.learn("p/m", evidence=TEXT, prompt=None, usage=Usage(1, None, 301, 200, 302))
    taught = {"estimator": estimator, "completion_tokens_max": 280}
    for usage in (None, Usage(9, None, None)):
        found = read(usage, TEXT, **taught)
        assert (found.usage.completion_tokens, found.hidden_tokens, found.capped) == (280, 179, True)
        assert found.expected_error == round(0.5 * 179 / 280, 4)
    told = read(Usage(None, None, 300), TEXT, **taught)
    assert (told.source, told.hidden_tokens, told.capped) == (UsageSource.ESTIMATED, None, False)
    assert not read(Usage(None, None, 300), TEXT, completion_tokens_max=50).limit_exceeded
    assert told.expected_error == 0.3  # of the prompt: it alone was estimated
    assert read(Usage(9, None, 300), TEXT, **taught).hidden_tokens is None
    assert read(None, Evidence(), model_key="p/o3", accepted=True).hidden_tokens == 0


def test_a_half_reported_usage_keeps_its_half() -> None:
    assert read(Usage(9, 2, None), TEXT).usage == Usage(9, 2, 101, None, 110)
    assert read(Usage(None, None, 3), TEXT).usage == Usage(7, None, 3, None, 10)
    assert read(Usage(9, None, None), Evidence()).usage == Usage(9, None, 0, None, 9)
    assert read(Usage(9, None, None), TEXT).source is UsageSource.ESTIMATED
    assert read(Usage(total_tokens=50), TEXT).usage == Usage(7, None, 101, None, 50)
