"""One proxy for all programs, and what each of them reported: run once, when its first test asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.sdks.answers import ANSWERS, COUNT_TOKENS, broken
from tests.real.sdks.programs import Program, Report, Reports
from tests.real.sdks.stand import Stand


@pytest.fixture(scope="session")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """How it ends is part of the test."""
    made = Stand(tmp_path_factory.mktemp("sdks"))
    try:
        yield made
        assert made.tokenweir.unreconciled() == []
        assert made.tokenweir.stop() == 0, made.log_tail()
        assert "Traceback" not in made.tokenweir.log.read_text(), made.log_tail()
    finally:
        made.close()


@pytest.fixture(scope="session")
def reports(stand: Stand) -> Reports:
    """What a program reported, by scenario; skips where it cannot be had."""
    told: dict[str, dict[str, Report]] = {}
    skipped: dict[str, str] = {}

    def of(program: Program) -> dict[str, Report]:
        if program.id in skipped:
            pytest.skip(skipped[program.id])
        if program.id not in told:
            plans = {name: answer.plan for name, answer in ANSWERS[program.language].items()}
            plans |= {"limited": plans["plain"], "broken": broken(program.language), "count_tokens": COUNT_TOKENS}
            for name, plan in plans.items():
                stand.plan(program.model(name), plan)
            try:
                told[program.id] = program.run(stand.environment(program.id))
            except pytest.skip.Exception as why:
                skipped[program.id] = str(why)
                raise
        return told[program.id]

    return of
