"""A value that is fetched by blocking calls, and expires.

Invariants: at most one fetch runs at a time, in a thread; it continues when requests that wait for it are cancelled. A
value is renewed before it expires, and used meanwhile. After a failure, the next fetch begins RETRY_S later at the
earliest. Only the type of a failure is logged: its text may contain a secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from proxy.foundation.outage import Outage, OutageLog
from proxy.gateway.upstream.failures import NotSentError
from proxy.http import errors
from proxy.http.errors import ApiError

# The shortest interval between requests to a server that issues credentials, after a failure.
RETRY_S = 5.0

_T = TypeVar("_T")


class CredentialFailedError(NotSentError):
    """There are no credentials for the provider."""

    def refusal(self) -> ApiError:
        """The response to the client, which cannot fix the failure."""
        return errors.no_upstream_credentials()


class Lasting(NamedTuple, Generic[_T]):
    """A value, and when it is renewed and expires. Unix seconds."""

    value: _T
    renew_at: float
    ends_at: float


class Fetched(Generic[_T]):
    """One value, fetched when it is needed or about to expire."""

    def __init__(
        self, fetch: Callable[[], Lasting[_T]], what: str, *, unix_time: Callable[[], float] = time.time
    ) -> None:
        """`fetch`: a blocking call. `what`: the name of the value in the log."""
        self._fetch = fetch
        self._unix_time = unix_time
        self._kept: Lasting[_T] | None = None
        self._running: asyncio.Future[Lasting[_T]] | None = None
        self._failed = ""  # the failure of the last fetch; empty: none
        self._again_at = 0.0
        self._outage = Outage(OutageLog(what))

    @property
    def last(self) -> _T | None:
        """The last value, even if it has expired; None: there was none yet."""
        return None if self._kept is None else self._kept.value

    async def get(self) -> _T:
        """The value. Raises CredentialFailedError."""
        now, kept = self._unix_time(), self._kept
        if kept is not None and now < kept.renew_at:
            return kept.value
        if self._running is None and now >= self._again_at:
            self._begin()
        if kept is not None and now < kept.ends_at:
            return kept.value
        running = self._running
        if running is not None:
            await asyncio.wait([running])  # not `await running`: a cancelled request would cancel it for the others
        if self._failed or self._kept is None:
            raise CredentialFailedError(f"no credentials: {self._failed}")
        return self._kept.value

    def _begin(self) -> None:
        self._running = asyncio.get_running_loop().run_in_executor(None, self._fetch)
        self._running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Future[Lasting[_T]]) -> None:
        self._running = None
        failure = None if running.cancelled() else running.exception()
        if running.cancelled() or failure is not None:
            self._failed = "cancelled" if failure is None else type(failure).__name__
            self._again_at = self._unix_time() + RETRY_S
            self._outage.began(PermissionError(f"they cannot be obtained ({self._failed})"))
        else:
            self._kept, self._failed = running.result(), ""
            self._outage.over()
