"""Waiting for what others do in their own time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any


async def until(holds: Callable[[], Any | Awaitable[Any]], *, within_s: float = 10.0, poll_s: float = 0.002) -> None:
    """Return when the result of `holds`, or what it awaits, is true. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not (await found if isawaitable(found := holds()) else found):
            await asyncio.sleep(poll_s)
