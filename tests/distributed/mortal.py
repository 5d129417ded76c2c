"""`python -m tests.distributed.mortal PHASES SEED worker --config …`: `tokenweir worker`, one life for each phase of
the comma-separated list; each ends itself with kill -9 in its phase, and prints `died <phase>`. Without phases: one
ordinary life.

Law: the lives are forks of one process that has imported everything and started nothing, so that a life costs what the
worker itself costs. A record that was tried twice kills nobody: it is not to be taken for one that kills by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum, auto
from random import Random
from typing import Any

from sqlalchemy import Engine, event

from proxy.cli import main as command
from proxy.delivery.redis_queue import RedisQueue
from proxy.ledger.settling.settler import Settler
from proxy.ledger.settling.store import LedgerStore
from proxy.ledger.settling.sums import Sums
from proxy.runtime import worker as _imported_once  # noqa: F401  so that no life has to

POISON = "poison"
"""a model whose records kill in the phase of that name"""
_TRIES_MAX = 3


class Phase(StrEnum):
    """Where a worker dies."""

    READING = auto()
    """some of the batch is read"""
    MID_BATCH = auto()
    """the entries are written, the sums are not"""
    BEFORE_COMMIT = auto()
    """all is written, and COMMIT was not sent"""
    AFTER_COMMIT = auto()
    """the ledger has it; nobody was told"""
    BEFORE_ACK = auto()
    """the settler knows; the queue was not told"""
    MID_ACK = auto()
    """the messages are deleted, and still pending"""
    POISON = auto()
    """a record that kills whoever reads it"""


class Fate:
    """The end of one life."""

    def __init__(self, phase: Phase, rng: Random) -> None:
        self._phase = phase
        self._rng = rng
        self._batches = rng.randrange(3)
        """so many before"""
        self._tried: dict[object, int] = {}
        """queue → how often a record of the batch in hand was tried"""
        self._armed = False
        self._once = threading.Lock()
        self._here = threading.local()
        """`records`, in the thread of a settler: so many are read before it strikes"""

    def await_it(self) -> None:
        """From now on it can come."""
        self._around(Settler, "_write", self._write)
        self._around(Settler, "_entry", self._made)
        self._around(Sums, "add", self._at(Phase.MID_BATCH))
        self._around(LedgerStore, "settle", self._settle)
        self._around(RedisQueue, "_acknowledge", self._acknowledge)
        event.listen(Engine, "commit", self._commit)

    def _around(self, owner: type, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *arguments: around(original, *arguments))

    def _at(self, phase: Phase) -> Callable[..., Any]:
        def around(original: Callable[..., Any], *arguments: Any) -> Any:
            self._strike(phase)
            return original(*arguments)

        return around

    def _write(self, original: Callable[..., Any], me: Settler, batch: Sequence[Any]) -> Any:
        self._here.records = self._rng.randrange(len(batch))
        self._tried[me._source] = max(one.deliveries for one in batch)
        self._armed = self._batches <= 0
        self._batches -= 1
        return original(me, batch)

    def _made(self, original: Callable[..., Any], me: Settler, pending: Any) -> Any:
        if self._phase is Phase.POISON and pending.deliveries < 6 and POISON.encode() in pending.payload:
            self._die()
        if self._here.records == 0:
            self._strike(Phase.READING)
        self._here.records -= 1
        return original(me, pending)

    def _settle(self, original: Callable[..., Any], *arguments: Any) -> Any:
        settled = original(*arguments)
        self._strike(Phase.AFTER_COMMIT)
        return settled

    def _commit(self, _connection: object) -> None:
        self._strike(Phase.BEFORE_COMMIT)

    async def _acknowledge(self, original: Callable[..., Any], queue: RedisQueue) -> None:
        if queue._unacknowledged and self._may_strike:
            if self._phase is Phase.BEFORE_ACK:
                self._die()
            if self._phase is Phase.MID_ACK:
                await queue._redis.xdel(queue._key, *queue._unacknowledged)
                self._die()
        await original(queue)
        self._tried.pop(queue, None)

    @property
    def _may_strike(self) -> bool:
        return self._armed and all(tries < _TRIES_MAX for tries in list(self._tried.values()))

    def _strike(self, phase: Phase) -> None:
        """In a settler's thread; no other writes for a queue."""
        if self._phase is phase and hasattr(self._here, "records") and self._may_strike:
            self._die()

    def _die(self) -> None:
        self._once.acquire()  # two threads may come to it at the same time
        os.write(1, f"died {self._phase}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def live(phase: Phase, rng: Random, arguments: list[str]) -> int:
    """A worker in a process of its own, to its end. Its wait status."""
    if (child := os.fork()) == 0:
        Fate(phase, rng).await_it()
        os._exit(command(arguments))

    def end(_number: int, _frame: object) -> None:
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    return os.waitpid(child, 0)[1]


def main() -> int:
    phases, seed, *arguments = sys.argv[1:]
    if not phases:
        return command(arguments)
    for number, phase in enumerate(phases.split(",")):
        status = live(Phase(phase), Random(f"{seed} {number}"), arguments)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            print(f"a life ended otherwise: {status}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
