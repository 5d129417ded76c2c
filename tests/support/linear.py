"""Checks that work takes linear time, without a limit in seconds."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

TRIES = 3
# Four times the work takes four times as long if it is linear, sixteen times if it is quadratic.
FACTOR, RATIO_MAX = 4, 8.0


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """`work(n)` does n steps. Fails if 4 × `size` steps take more than 8 times as long as `size` steps.

    Measured again only after a failure: of each size, the quickest measurement counts.
    """
    few = many = float("inf")
    for _ in range(TRIES):
        few, many = min(few, _seconds(work, size)), min(many, _seconds(work, FACTOR * size))
        if many < RATIO_MAX * few:
            return
    raise AssertionError(f"{size} steps took {few:.4f} s, {FACTOR * size} took {many:.4f} s")


def _seconds(work: Callable[[int], object], count: int) -> float:
    began = thread_time()
    work(count)
    return thread_time() - began
