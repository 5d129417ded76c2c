"""How many examples Hypothesis tries: in the gate some, the same at each run; in `make faults` all, at random."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

AT_RANDOM = os.environ.get("HYPOTHESIS_PROFILE") == "random"
_FEWEST = 5
# Of faults at random. Another run: TOKENWEIR_CHAOS_SEED=… make faults
SEED = int(os.environ.get("TOKENWEIR_CHAOS_SEED", "2026"))


def examples(count: int) -> int:
    """Of a test that tries `count` in `make faults`: a twentieth of them in the gate, and some."""
    return count if AT_RANDOM else max(count // 20, min(count, _FEWEST))


def repeats(count: int, *, gate: int) -> int:
    """Of a loop or a walk of `count` steps in `make faults`: `gate` of them in the gate. The test needs the mark
    `hypothesis`, by which `make faults` selects it."""
    return count if AT_RANDOM else gate


def each(step: int, rows: Iterable[Any]) -> list[Any]:
    """Rows of a table for `parametrize`, tuples of several arguments: each `step`-th in the gate, the others in
    `make test-thorough`."""
    return [
        row if not number % step else pytest.param(*(row if type(row) is tuple else (row,)), marks=pytest.mark.thorough)
        for number, row in enumerate(rows)
    ]


def load_profile() -> None:
    """Register the default settings. No deadline for one example: a machine may be busy.

    In the gate, examples use no constants of the modules that are imported. To read all modules costs each worker some
    seconds, and which modules are imported depends on the tests of a worker.
    """
    if not AT_RANDOM:
        patch.object(providers, "_get_local_constants", lambda: providers._local_constants).start()
    hypothesis.settings.register_profile(
        "tokenweir", max_examples=examples(150), derandomize=not AT_RANDOM, deadline=None, print_blob=True
    )
    hypothesis.settings.load_profile("tokenweir")
