"""Waits for the ledger and Redis if they are unavailable when a server starts: requests get 503, and the reason is
logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

_log = logging.getLogger(__name__)

POLL_S = 1.0
# The log says so again after that.
AGAIN_S = 60.0

Waiting = Callable[[str], AbstractAsyncContextManager[None]]
"""given the reason, makes the context in which a server waits"""


async def until_there(
    check: Callable[[], Awaitable[object]], waiting: Waiting, *, absent: tuple[type[Exception], ...], what: str
) -> None:
    """Call `check` until it raises none of `absent`. `what`: that which is waited for, for the log."""
    reason = await _absence(check, absent)
    if reason is None:
        return
    _log.error("%s: waiting for %s", reason, what)
    async with waiting(reason):
        tries = 0
        while reason is not None:
            await asyncio.sleep(POLL_S)
            reason, tries = await _absence(check, absent), tries + 1
            if reason is not None and tries % round(AGAIN_S / POLL_S) == 0:
                _log.error("%s: still waiting for %s", reason, what)
    _log.info("%s is there: starting", what)


async def _absence(check: Callable[[], Awaitable[object]], absent: tuple[type[Exception], ...]) -> str | None:
    try:
        await check()
    except absent as error:
        return str(error)
    return None
