"""How many examples Hypothesis tries: in the gate some, the same at each run; in `make faults` all, at random."""

from __future__ import annotations

import os

import hypothesis

AT_RANDOM = os.environ.get("HYPOTHESIS_PROFILE") == "random"
_FEWEST = 10


def examples(count: int) -> int:
    """Of a test that tries `count` in `make faults`: a tenth of them in the gate, and some."""
    return count if AT_RANDOM else max(count // 10, min(count, _FEWEST))


def repeats(count: int, *, gate: int) -> int:
    """Of a loop or a walk of `count` steps in `make faults`: `gate` of them in the gate. The test needs the mark
    `hypothesis`, by which `make faults` selects it."""
    return count if AT_RANDOM else gate


def load_profile() -> None:
    """Register the default settings. No deadline for one example: a machine may be busy."""
    hypothesis.settings.register_profile(
        "tokenweir", max_examples=examples(150), derandomize=not AT_RANDOM, deadline=None, print_blob=True
    )
    hypothesis.settings.load_profile("tokenweir")
