"""Estimates of recorded streams are as near as they are said to be; and what measures that measures right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import asked, estimates
from tests.bench.estimates import CORPUS, Recorded, fresh, grouped, left_out, records
from tests.bench.figures import Figures, counting, ridge


def test_figures_are_what_they_say() -> None:
    found = Figures.of([(110, 100), (90, 100), (150, 100), (250, 200)])
    assert found == Figures(4, pytest.approx(0.175), pytest.approx(0.25), pytest.approx(0.24), pytest.approx(1.2))


def test_without_the_corpus_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(estimates, "CORPUS", Path("/nowhere"))
    assert estimates.main() == 0
    assert capsys.readouterr().out.startswith("skipped")


@pytest.mark.skipif(not CORPUS.exists(), reason="the recorded corpus ../shared/corpus is not here")
def test_the_figures_are_reached() -> None:
    recorded = Recorded.read()
    many = grouped(recorded.seen, estimates.GROUP_MIN)
    learned = left_out(many, many, ridge, by=estimates.by_key)
    assert learned.streams >= 360
    assert learned.median <= 0.06
    assert learned.weighted <= 0.09
    assert learned.bias == pytest.approx(1, abs=0.02)
    unlearned = fresh(recorded.seen, ridge)
    assert unlearned.streams >= 508
    assert unlearned.median <= 0.14
    assert unlearned.bias == pytest.approx(1, abs=0.05)
    of_openai = [one for one in recorded.seen if estimates.O200K.match(estimates.by_name(one))]
    known = left_out(of_openai, recorded.seen, ridge, by=estimates.by_key)
    assert known.streams >= 300
    assert known.median <= 0.02
    if counted := estimates.known(recorded):  # its package is installed
        for streams in (counted, estimates.single(recorded)):
            extra = left_out(streams, recorded.seen, counting, by=estimates.by_key)
            assert extra.streams >= 45
            assert extra.median <= 0.01
            assert extra.bias == pytest.approx(1, abs=0.02)
    hidden = left_out(recorded.unseen, [*recorded.seen, *recorded.unseen], ridge, by=estimates.by_name)
    assert hidden.streams >= 90
    assert hidden.bias == pytest.approx(1, abs=0.1)
    _, prompts = asked.figures(asked.measured(records()))
    assert prompts.streams >= 340
    assert prompts.median <= 0.05
