"""Waits for the end of a body whose pieces are taken as they come.

Invariant: `ended` is set once; a bug of ours is an end that is not whole.
"""

from __future__ import annotations

import asyncio


class BodyEnd:
    """A `Sink` but for `piece`. `ended`: True if the body is whole."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def run_on(self, wire: bytes) -> bool:
        """Pieces are wanted."""
        return False

    def complete(self) -> None:
        """It is whole."""
        self.end(whole=True)

    def upstream_error(self) -> None:
        """It broke off."""
        self.end(whole=False)

    def internal_error(self) -> None:
        """A bug of ours."""
        self.end(whole=False)

    def end(self, *, whole: bool) -> None:
        """Nothing more is wanted. Idempotent."""
        if not self.ended.done():
            self.ended.set_result(whole)
