"""Something that is away, said once. Law: `failed` when it begins, `healed` when it is over, nothing in between."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Who is told: metrics and the log."""

    def failed(self, error: Exception) -> None:
        """It does not answer, or a bug has shown itself."""

    def healed(self, error: Exception) -> None:
        """What began with `error` is over."""


class Outage:
    """Call `began` at each failure, and `over` at each success."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._error: Exception | None = None

    def began(self, error: Exception) -> None:
        """It failed."""
        if self._error is None:
            self._error = error
            self._listener.failed(error)

    def over(self) -> None:
        """It worked."""
        if self._error is not None:
            error, self._error = self._error, None
            self._listener.healed(error)
