"""A folder for journals."""

from tests.journal.journals import folder

__all__ = ["folder"]
