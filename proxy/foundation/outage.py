"""Reports each outage once. Invariant: `failed` at its start, `healed` at its end, nothing in between."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class OutageListener(Protocol):
    """Receives the start and the end of an outage, for metrics and the log."""

    def failed(self, error: Exception) -> None:
        """The outage started: a service does not answer, or there is a bug."""

    def healed(self, error: Exception) -> None:
        """The outage that started with `error` has ended."""


class Outage:
    """Call `began` at each failure and `over` at each success, or let `attempt` do so."""

    def __init__(self, listener: OutageListener) -> None:
        self._listener = listener
        self._error: Exception | None = None

    @property
    def lasts(self) -> bool:
        """True from `began` to `over`."""
        return self._error is not None

    async def attempt(self, step: Callable[[], Awaitable[_T]], otherwise: _T) -> _T:
        """The result of `step`; `otherwise` if it raises any Exception, whose first one is reported."""
        try:
            result = await step()
        except Exception as error:  # noqa: BLE001  an outage, or a bug: reported, and the caller tries again
            self.began(error)
            return otherwise
        self.over()
        return result

    def began(self, error: Exception) -> None:
        """Record a failure; only the first is reported."""
        if self._error is None:
            self._error = error
            self._listener.failed(error)

    def over(self) -> None:
        """Record a success; it is reported if an outage lasts."""
        if self._error is not None:
            error, self._error = self._error, None
            self._listener.healed(error)


class OutageLog:
    """Writes outages to the log."""

    def __init__(self, what: str, count: Callable[[], None] | None = None) -> None:
        """`what`: the operation that fails. `count`: called at the start of each outage."""
        self._what = what
        self._count = count

    def failed(self, error: Exception) -> None:
        """Log the start; with a traceback only for a bug: an OSError comes from outside this process."""
        if self._count is not None:
            self._count()
        _log.error("%s: %s", self._what, error, exc_info=None if isinstance(error, OSError) else error)

    def healed(self, _error: Exception) -> None:
        """Log the end."""
        _log.warning("%s: works again", self._what)
