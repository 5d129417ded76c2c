"""An outage, reported once. Invariant: `failed` when it begins, `healed` when it ends, nothing in between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Is told of an outage: metrics and the log."""

    def failed(self, error: Exception) -> None:
        """It began: something does not answer, or there is a bug."""

    def healed(self, error: Exception) -> None:
        """What began with `error` is over."""


class Outage:
    """Call `began` at each failure, and `over` at each success."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._error: Exception | None = None

    @property
    def lasts(self) -> bool:
        """It began, and is not over."""
        return self._error is not None

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


class OutageLog:
    """A listener that writes to the log."""

    def __init__(self, what: str, count: Callable[[], None] | None = None) -> None:
        """`what` fails; `count` is called at the beginning of each outage."""
        self._what = what
        self._count = count

    def failed(self, error: Exception) -> None:
        """An outage begins. With a traceback only if it is a bug: an OSError is the outside world's."""
        if self._count is not None:
            self._count()
        _log.error("%s: %s", self._what, error, exc_info=None if isinstance(error, OSError) else error)

    def healed(self, _error: Exception) -> None:
        """It is over."""
        _log.warning("%s: works again", self._what)
