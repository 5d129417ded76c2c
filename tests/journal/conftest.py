"""A folder for journals, and a journal in it."""

from tests.journal.journals import folder, journal

__all__ = ["folder", "journal"]
