"""Slices of the event loop's time that are used up at once."""

from tests.support.turns import each_step_is_a_turn

__all__ = ["each_step_is_a_turn"]
