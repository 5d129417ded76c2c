"""Estimates of recorded streams are as near as they are said to be; and what measures that measures right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import asked, estimates
from tests.bench.estimates import Recorded, fresh, grouped, left_out, records
from tests.bench.figures import Figures, Teach, referenced, ridge
from tests.metering.corpus.corpus import NEEDS_CORPUS


def test_figures_are_what_they_say() -> None:
    found = Figures.of([(110, 100), (90, 100), (150, 100), (250, 200)])
    assert found == Figures(4, pytest.approx(0.175), pytest.approx(0.25), pytest.approx(0.24), pytest.approx(1.2))


def test_without_the_corpus_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(estimates, "CORPUS", Path("/nowhere"))
    assert estimates.main() == 0
    assert capsys.readouterr().out.startswith("skipped")


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded.read()


@pytest.mark.real
@NEEDS_CORPUS
@pytest.mark.parametrize("teach", [ridge, referenced])
def test_the_figures_are_reached(recorded: Recorded, teach: Teach) -> None:
    many = grouped(recorded.seen, estimates.GROUP_MIN)
    learned = left_out(many, many, teach, by=estimates.by_key)
    assert learned.streams >= 360
    assert learned.median <= 0.06
    assert learned.weighted <= 0.09
    assert learned.bias == pytest.approx(1, abs=0.02)
    unlearned = fresh(recorded.seen, teach)
    assert unlearned.streams >= 508
    assert unlearned.median <= 0.14
    # 0.947 by count: the templates of tool calls are not in the text. Two streams of Gemini's at Vercel's, whose
    # reasoning was not read as billed, had made up for it.
    assert unlearned.bias == pytest.approx(1, abs=0.05 if teach is ridge else 0.055)
    of_openai = [one for one in recorded.seen if estimates.O200K.match(estimates.by_name(one))]
    known = left_out(of_openai, recorded.seen, teach, by=estimates.by_key)
    assert known.streams >= 300
    assert known.median <= 0.02
    hidden = left_out(recorded.unseen, [*recorded.seen, *recorded.unseen], teach, by=estimates.by_name)
    assert hidden.streams >= 90
    assert hidden.bias == pytest.approx(1, abs=0.1)


@pytest.mark.real
@NEEDS_CORPUS
def test_where_the_reference_is_the_models_own_it_is_exact(recorded: Recorded) -> None:
    of_openai = [one for one in recorded.seen if estimates.O200K.match(estimates.by_name(one))]
    for streams, least in ((of_openai, 300), (estimates.single(recorded), 45)):
        found = left_out(streams, recorded.seen, referenced, by=estimates.by_key)
        assert found.streams >= least
        assert found.median <= 0.005
        assert found.bias == pytest.approx(1, abs=0.02)


@pytest.mark.real
@NEEDS_CORPUS
def test_prompts() -> None:
    _, counters, reference = asked.figures(asked.measured(records()))
    assert counters.streams >= 340
    assert counters.median <= 0.05
    assert reference.median <= 0.025
