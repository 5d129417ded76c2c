"""Estimates from the reference's count: near before anything is learned, nearer after, unmoved by what is odd; and what
a profile counts."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.estimator.estimate import REFERENCED, TOKENIZED, Estimator, reading
from proxy.metering.estimator.referenced import BELIEFS, kind_of
from proxy.metering.estimator.spread import KINDS, Spread
from proxy.metering.metered import Metered
from proxy.metering.profile import PIECE_CHARS, Counted, Profile, profile_of, profiles_of
from proxy.metering.usage import Evidence, PromptEvidence, Usage, UsageSource

KEY = "p/m"
WORDS = Profile(500, 2200, letters=1750, marks=40)


def chinese(tokens: int) -> Profile:
    return Profile(tokens, round(1.2 * tokens), han=round(1.1 * tokens), kana=round(0.1 * tokens))


def evidence(profile: Profile, events: int) -> Evidence:
    return Evidence(text_events=events, chars_latin=profile.chars)


def estimate(profile: Profile, events: int, estimator: Estimator | None = None, key: str = KEY) -> tuple[int, float]:
    found = (estimator or Estimator()).completion(
        key, evidence(profile, events), completion_tokens_max=None, bytes_seen=1 << 30,
        counted=Counted(profile, Profile()),
    )  # fmt: skip
    return found.tokens, found.expected_error


def learn(estimator: Estimator, profile: Profile, events: int, tokens: int, key: str = KEY) -> None:
    usage = Usage(9, None, tokens)
    counted = Counted(profile, Profile())
    estimator.learn_counted(key, evidence=evidence(profile, events), usage=usage, counted=counted)


def taught(factor: float, script_factor: float, *, lessons: int = 20) -> Estimator:
    """By a model with so many tokens for each of the reference's, in English and in Chinese."""
    estimator, rng = Estimator(), random.Random(1)
    for number in range(lessons):
        size = rng.randint(50, 900)
        if number % 2:
            learn(estimator, chinese(size), size // 4, round(script_factor * size))
        else:
            learn(estimator, WORDS.times(size / 500), size // 4, round(factor * size))
    return estimator


@pytest.mark.parametrize(("events", "tokens"), [(500, 501), (125, 512), (1, 512), (540, 541), (0, 512)])
def test_events_of_one_token_are_counted_and_others_by_the_reference(events: int, tokens: int) -> None:
    assert estimate(WORDS, events)[0] == pytest.approx(tokens, abs=2)


@pytest.mark.parametrize("factor", [0.95, 1.0, 1.15, 1.4])
@pytest.mark.parametrize("script_factor", [0.6, 0.8, 1.4])
def test_a_models_tokens_are_learned_by_script(factor: float, script_factor: float) -> None:
    estimator = Estimator.restore(json.loads(json.dumps(taught(factor, script_factor).export())))
    words, error = estimate(WORDS, 125, estimator)
    assert words == pytest.approx(500 * factor, rel=0.03)
    assert abs(words / (500 * factor) - 1) <= error < 0.12
    assert estimate(chinese(300), 75, estimator)[0] == pytest.approx(300 * script_factor, rel=0.05)
    assert estimate(WORDS, 125, estimator, key="p/other") == estimate(WORDS, 125), "each model for itself"


def test_a_script_that_was_not_seen_yet_is_less_sure() -> None:
    estimator = taught(1.0, 0.8)
    tamil = Profile(400, 1000, tamil=900)
    assert estimate(tamil, 100, estimator)[1] > 4 * estimate(WORDS, 125, estimator)[1]


# Characters of a script for each of the reference's tokens, and tokens of vocabularies of other families (an older one
# of Claude's, cl100k, GPT-2's, Gemma 3's) for each of them.
OTHER_VOCABULARIES = {
    "thai": (2.3, (0.7, 2.1, 3.8, 4.6)),
    "tamil": (2.5, (0.75, 3.6, 5.0, 7.2)),
    "bengali": (2.5, (0.75, 3.2, 4.4, 5.0)),
    "devanagari": (2.9, (0.9, 1.7, 3.1, 4.3)),
    "greek": (2.4, (1.0, 2.2, 2.9)),
    "hebrew": (2.4, (1.0, 2.1, 2.9)),
    "arabic": (2.9, (1.0, 2.1, 3.0)),
    "cyrillic": (3.2, (1.0, 1.8, 3.6)),
    "hangul": (1.4, (0.9, 1.7, 3.1)),
    "han": (1.2, (0.7, 1.4, 2.4)),
}


def reported(script: str, factor: float, size: int, tokens_per_event: float) -> tuple[Profile, int, int]:
    """A text in this script, its events and its tokens."""
    chars = round(size * OTHER_VOCABULARIES[script][0])
    tokens = round(size * factor)
    return Profile(size, chars, **{script: round(0.95 * chars)}), max(round(tokens / tokens_per_event), 1), tokens


@pytest.mark.parametrize(("with_english", "tokens_per_event"), [(False, 40.0), (True, 4.5)])
@pytest.mark.parametrize(
    ("script", "factor"),
    [(script, factor) for script, (_, factors) in OTHER_VOCABULARIES.items() for factor in factors],
)  # fmt: skip
def test_an_estimate_is_within_its_error_after_twenty_answers_of_any_vocabulary(
    script: str, factor: float, tokens_per_event: float, with_english: bool
) -> None:
    estimator, rng = Estimator(), random.Random(f"{script} {factor} {tokens_per_event} {with_english}")
    for number in range(20):
        size = rng.randint(50, 900)
        if with_english and number % 2:
            learn(estimator, WORDS.times(size / 500), round(size / tokens_per_event) or 1, round(1.02 * size))
        else:
            learn(estimator, *reported(script, factor * rng.uniform(0.98, 1.02), size, tokens_per_event))
    profile, events, tokens = reported(script, factor, 170, tokens_per_event)
    found, error = estimate(profile, events, estimator)
    assert abs(found / tokens - 1) <= error < 0.3
    assert found == pytest.approx(tokens, rel=0.15)


@pytest.mark.parametrize("script", OTHER_VOCABULARIES)
def test_a_prompt_is_within_its_error_after_twenty_answers_of_an_older_vocabulary(script: str) -> None:
    estimator, rng = Estimator(), random.Random(script)
    factor = OTHER_VOCABULARIES[script][1][-1]

    def asked(size: int, *, english: bool = False) -> tuple[PromptEvidence, Profile, int]:
        profile, _, tokens = reported(script, factor, size, 1.0)
        if english:
            profile, tokens = WORDS.times(size / 500), round(1.02 * size)
        return PromptEvidence(messages=1, chars_other=profile.chars), profile, tokens + 7

    for number in range(20):
        estimator.learn_prompt(KEY, *asked(rng.randint(50, 900), english=number % 2 == 0))
    prompt, profile, tokens = asked(170)
    found, error = estimator.prompt_counted(KEY, prompt, profile)
    assert abs(found / tokens - 1) <= error < 0.3


@pytest.mark.parametrize("script", OTHER_VOCABULARIES)
def test_a_model_of_one_token_an_event_is_counted_by_events_in_every_script(script: str) -> None:
    """Also where an older vocabulary of other scripts was learned."""
    estimator = Estimator()
    for size in range(100, 1100, 100):
        learn(estimator, WORDS.times(size / 500), size, size + 1)
        learn(estimator, *reported("greek" if script != "greek" else "thai", 2.2, size, 1.0))
    profile, events, tokens = reported(script, 1.1, 400, 1.0)
    assert estimate(profile, events, estimator)[0] == pytest.approx(tokens, rel=0.05)


def test_answers_in_one_event_do_not_change_the_shape_of_a_model() -> None:
    estimator = Estimator()
    for size in range(100, 1100, 100):
        learn(estimator, WORDS.times(size / 500), size, size + 1)
    for _ in range(50):
        learn(estimator, WORDS, 1, 510)
    profile, events, tokens = reported("thai", 1.2, 400, 1.0)
    assert estimate(profile, events, estimator)[0] == pytest.approx(tokens, rel=0.05)
    assert estimate(WORDS, 1, estimator)[0] == pytest.approx(510, rel=0.05)


@pytest.mark.parametrize(
    ("lessons", "lie"),
    [
        (20, 0.0), (200, 3.0),
        *(pytest.param(lessons, lie, marks=pytest.mark.slow)
          for lessons, lie in ((20, 0.4), (20, 3.0), (20, 50.0), (200, 0.0), (200, 0.4), (200, 50.0))),
    ],
)  # fmt: skip
def test_odd_reports_move_nothing_until_most_are_odd(lie: float, lessons: int) -> None:
    estimator = taught(1.1, 0.8, lessons=lessons)
    before = estimate(WORDS, 125, estimator)[0]
    for _ in range(200):
        learn(estimator, WORDS, 125, max(round(lie * 550), 1))
    assert estimate(WORDS, 125, estimator)[0] == pytest.approx(before, rel=0.03)
    for _ in range(600):
        learn(estimator, WORDS, 125, max(round(lie * 550), 1))
    changed = estimate(WORDS, 125, estimator)[0]
    assert changed != pytest.approx(before, rel=0.03), "the model is another one by now"


@pytest.mark.parametrize(
    "odd",
    [
        Profile(600, 200, emoji=200),
        Profile(600, 200, rare=200),
        Profile(600, 900, letters=700, digits=200, numbers=190),
        Profile(60, 3000, gaps=2990),
    ],
    ids=["emoji", "rare", "base64", "whitespace"],
)
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_odd_texts_teach_nothing_about_others(odd: Profile, factor: float) -> None:
    estimator = taught(1.1, 0.8)
    before = [estimate(one, 125, estimator)[0] for one in (WORDS, chinese(300))]
    for _ in range(100):
        learn(estimator, odd, 9, round(factor * odd.tokens))
    after = [estimate(one, 125, estimator)[0] for one in (WORDS, chinese(300))]
    assert after == pytest.approx(before, rel=0.03)
    assert estimate(odd, 9, estimator)[0] == pytest.approx(factor * odd.tokens, rel=0.1), "and their own are learned"


profiles = st.builds(
    lambda tokens, counts: Profile(tokens, sum(counts) + tokens, *counts),
    st.integers(0, 10**6), st.lists(st.integers(0, 10**6), min_size=21, max_size=21),
)  # fmt: skip


@given(
    profiles,
    profiles,
    st.integers(0, 10**6),
    st.integers(0, 50),
    st.none() | st.integers(1, 10**6),
    st.integers(0, 10**8),
)
def test_an_estimate_is_possible_whatever_was_counted(
    text: Profile, calls: Profile, events: int, called: int, most: int | None, size: int
) -> None:
    seen = Evidence(text_events=events, chars_latin=text.chars, tool_chars=calls.chars, tool_calls=called)
    estimator = Estimator()
    for _ in range(2):
        found = estimator.completion(
            KEY, seen, completion_tokens_max=most, bytes_seen=size, counted=Counted(text, calls)
        )
        assert found.tokens <= max(size, 1)
        assert found.limit_exceeded or found.tokens <= (most or found.tokens)
        assert (found.tokens > 0) is not seen.empty
        assert math.isfinite(found.expected_error)
        estimator.learn_counted(KEY, evidence=seen, usage=Usage(1, None, events + 1), counted=Counted(text, calls))
    exported = json.loads(json.dumps(estimator.export()))
    assert Estimator.restore(exported).export() == exported


def test_what_cannot_have_been_learned_is_left_out() -> None:
    good = taught(1.0, 0.8).export()
    row = good["referenced-3"][KEY]
    assert len(row) < 200, "only what was learned is stored"
    bad = ([], [1.0] * 4, row[:-1], [*row, 1.0], [9.0, *row[1:]], [*row[:3], 77.0, *row[4:]], ["x"], None)
    for one in bad:
        for version in ("2", "3"):
            names = {f"referenced-{version}": {KEY: one}, f"prompted-{version}": {KEY: one}}
            kept = {name: rows for name, rows in good.items() if not name.endswith("-3")}
            again = Estimator.restore(kept | names).export()
            assert "referenced-3" not in again
            assert "prompted-3" not in again


# What `reference-2` stored of a model with 1.4 of the reference's tokens in English, in events of several tokens, after
# twenty answers: the spread of all kinds, the shape, and the touched weights with their covariance.
VERSION_2 = [1.39, 20.0, 0.0, 8.0, 1.0, 0.0, 1.4, 4e-05]
PROMPTS_2 = [1.39, 20.0, 0.0, 0.0, 1.4, 4e-05]


def test_what_an_earlier_version_had_learned_is_read() -> None:
    old = {"version": "ridge-2", "referenced-2": {KEY: VERSION_2}, "prompted-2": {KEY: PROMPTS_2}}
    estimator = Estimator.restore(json.loads(json.dumps(old)))
    assert estimate(WORDS, 125, estimator)[0] == pytest.approx(700, rel=0.01)
    prompt = PromptEvidence(messages=1, chars_latin=WORDS.chars)
    assert estimator.prompt_counted(KEY, prompt, WORDS)[0] == pytest.approx(707, rel=0.01)
    again = estimator.export()
    assert "referenced-2" not in again
    assert Estimator.restore(again).export() == again
    newer = Estimator.restore(again | {"referenced-2": {KEY: [*VERSION_2[:-2], 1.1, 4e-05]}})
    assert estimate(WORDS, 125, newer)[0] == pytest.approx(700, rel=0.01), "the newer state counts"


def test_the_stated_error_comes_to_cover_nine_of_ten() -> None:
    rng, spread = random.Random(7), Spread()
    for number in range(3000):
        spread.learn(1, number + 1, abs(rng.gauss(0, 0.6)))
    held = sum(abs(rng.gauss(0, 0.6)) <= spread.most_deviations(1) for _ in range(3000)) / 3000
    assert 0.87 <= held <= 0.95


def test_each_kind_of_text_has_its_own_spread() -> None:
    rng, spread = random.Random(7), Spread()
    before = spread.most_deviations(2)
    for number in range(100):
        spread.learn(0, number + 1, abs(rng.gauss(0, 0.1)))
        spread.learn(1, number + 1, abs(rng.gauss(0, 1.5)))
    assert spread.most_deviations(0) < 0.6
    assert spread.most_deviations(1) > 2
    assert spread.most_deviations(2) == pytest.approx(before, rel=0.2), "a kind that was not seen"


def test_an_answer_that_repeats_a_text_says_nothing_about_others() -> None:
    spread = Spread()
    for _ in range(50):
        assert spread.learn(0, 500, 0.01)
    assert spread.most_deviations(0) > 1.3


def thai(rng: random.Random, chars: int) -> tuple[Profile, int]:
    """Sentences of 80 characters, some with names and numbers in them; 1.85 tokens a character."""
    letters = [round(80 * rng.uniform(0.75, 1.0)) for _ in range(chars // 80)]
    reference = round(sum(0.43 * count + 0.25 * (80 - count) for count in letters))
    return Profile(reference, chars, letters=chars - sum(letters), thai=sum(letters)), round(1.85 * chars)


@pytest.mark.parametrize("english", [0, 100])
@pytest.mark.parametrize("chars", [800, 4000])
def test_a_short_text_is_within_the_error_that_longer_ones_and_other_kinds_are_learned_with(
    english: int, chars: int
) -> None:
    """Answers that were cut are shorter than those that teach, and the spread of one kind is not another's."""
    held = 0
    for seed in range(60):
        estimator, rng = Estimator(), random.Random(seed)
        for _ in range(english):
            size = rng.randint(50, 900)
            learn(estimator, WORDS.times(size / 500), size // 4, round(1.02 * size))
        for _ in range(20):
            profile, tokens = thai(rng, rng.randint(chars // 160, chars // 80) * 80)
            learn(estimator, profile, tokens // 4, tokens)
        profile, tokens = thai(rng, 400)
        found, error = estimate(profile, tokens // 4, estimator)
        held += abs(found / tokens - 1) <= error < 0.1
    assert held >= 54, "nine of ten"


def test_the_size_of_events_tells_of_a_script_that_is_new_to_a_model() -> None:
    estimator, rng = Estimator(), random.Random(2)
    for _ in range(20):
        size = rng.randint(50, 900)
        learn(estimator, WORDS.times(size / 500), round(size / rng.uniform(3.8, 4.2)), size)
    profile, events, tokens = reported("tamil", 3.6, 300, 4.0)
    found, error = estimate(profile, events, estimator)
    assert found == pytest.approx(tokens, rel=0.2)
    assert abs(found / tokens - 1) <= error < 0.4
    assert estimate(WORDS, 1, estimator)[0] == pytest.approx(500, rel=0.05), "one event for all says nothing"
    for _ in range(200):
        learn(estimator, WORDS, 1, 500)
    assert estimate(profile, events, estimator)[0] == pytest.approx(found, rel=0.02), "and teaches nothing"


@pytest.mark.parametrize(
    ("profile", "kind"),
    [
        (WORDS, 14), (Profile(300, 700, thai=650), 8), (chinese(300), 9),
        (Profile(300, 400, han=200, kana=150), 10), (Profile(300, 1000, letters=850, accented=30), 12),
        (Profile(300, 1000, letters=850, accented=30, extended=40), 13), (Profile(300, 600, letters=450, emoji=60), 15),
        (Profile(300, 900, letters=600, marks=150), 16), (Profile(300, 900, letters=400, marks=150, digits=120), 17),
        (Profile(600, 900, letters=700, digits=200, numbers=190), 18), (Profile(), 14),
    ],
)  # fmt: skip
def test_the_kind_of_a_text(profile: Profile, kind: int) -> None:
    assert kind_of(profile) == kind < KINDS


def test_prompts_are_counted_and_learned() -> None:
    estimator, rng = Estimator(), random.Random(3)

    def asked(size: int, messages: int) -> tuple[PromptEvidence, Profile, int]:
        profile = WORDS.times(size / 500)
        evidence = PromptEvidence(messages=messages, chars_latin=profile.chars)
        return evidence, profile, round(1.2 * size) + 5 * messages + 3

    one = asked(400, 3)
    assert estimator.prompt_counted(KEY, one[0], one[1])[0] == pytest.approx(400 * 1.02 + 15, abs=6)
    for _ in range(20):
        prompt, profile, tokens = asked(rng.randint(20, 2000), rng.randint(1, 9))
        estimator.learn_prompt(KEY, prompt, profile, tokens)
    found, error = estimator.prompt_counted(KEY, one[0], one[1])
    assert found == pytest.approx(one[2], rel=0.02)
    assert 0.01 < error < 0.2
    half = one[1].times(0.5)  # only the beginning was held
    assert estimator.prompt_counted(KEY, one[0], half)[0] == pytest.approx(one[2], rel=0.03)


@pytest.mark.parametrize(
    ("name", "version"), [("llama", REFERENCED), ("openai/gpt-5-mini", TOKENIZED), ("o3", TOKENIZED)]
)
def test_entries_name_what_counted(name: str, version: str) -> None:
    metered = Metered(None, None, evidence(WORDS, 125), None, None, False, None, 1, (), {})
    found = reading(
        metered, estimator=Estimator(), model_key=f"p/{name}", prompt_tokens_estimate=7, completion_tokens_max=None,
        bytes_seen=9999, counted=Counted(WORDS, Profile()), prompt_counted=(31, 0.2),
    )  # fmt: skip
    assert (found.estimator, found.source, found.usage.prompt_tokens) == (version, UsageSource.ESTIMATED, 31)
    assert found.usage.total_tokens == 31 + (found.usage.completion_tokens or 0)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("Weir 1480.", {"letters": 4, "digits": 4, "numbers": 2, "marks": 1}),
        ("a  \n\n b", {"letters": 2, "gaps": 4}),
        ("é ß ğ ế", {"accented": 2, "extended": 1, "vietnamese": 1}),
        ("Ω я א ب", {"greek": 1, "cyrillic": 1, "hebrew": 1, "arabic": 1}),
        ("हि বা தா ที ລ", {"devanagari": 2, "bengali": 2, "tamil": 2, "thai": 3}),
        ("水門。カナ 한글 ！", {"han": 2, "kana": 4, "hangul": 2}),
        ("🌊👩‍🔬❤️", {"emoji": 6}),
        ("a\u0301\u0335 㐀 𠀀 ა — “x” →", {"letters": 2, "rare": 5}),
    ],
)  # fmt: skip
def test_a_profile_counts_each_script(text: str, counts: dict[str, int]) -> None:
    assert profile_of(text, 0) == Profile(0, len(text), **counts)


@given(st.text(max_size=300))
def test_no_character_is_in_two_classes(text: str) -> None:
    found = profile_of(text, 5)
    classes = [
        getattr(found, name) for name in Profile.__struct_fields__ if name not in ("tokens", "numbers", "gaps", "chars")
    ]
    assert min(classes) >= 0
    assert sum(classes) <= found.chars == len(text)


@given(st.lists(st.text(max_size=3000), max_size=4))
def test_a_text_is_counted_in_pieces(texts: list[str]) -> None:
    seen: list[str] = []

    def count(pieces: list[str]) -> list[int]:
        seen.extend(pieces)
        return list(map(len, pieces))

    found = profiles_of(texts, count)
    assert [one.tokens for one in found] == [one.chars for one in found] == list(map(len, texts))
    assert "".join(seen) == "".join(texts)
    assert all(len(piece) <= PIECE_CHARS for piece in seen)


def test_pieces_end_before_a_blank() -> None:
    pieces: list[str] = []
    profiles_of(["water " * 400, "=" * 3000], lambda found: [pieces.append(one) or 1 for one in found])  # type: ignore[func-returns-value]
    assert [len(one) for one in pieces] == [1019, 1020, 361, 1024, 1024, 952]


def test_every_belief_is_within_its_bounds() -> None:
    assert all(one.least <= one.prior <= one.most and one.spread > 0 for one in BELIEFS)
