"""Blocking work on named threads: bounded, and over when it is closed."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from proxy.storage.executor import BoundedExecutor, ExecutorFull


async def test_it_returns_what_the_work_returns_and_raises_what_it_raises() -> None:
    executor = BoundedExecutor(1, name="ledger")
    assert await executor.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await executor.run(divmod, 1, 0)
    assert (await executor.run(threading.current_thread)).name.startswith("ledger")
    executor.close()


async def test_one_call_more_than_may_run_and_wait_is_refused() -> None:
    executor, held = BoundedExecutor(2, name="ledger", waiting_max=1), threading.Event()
    running = [executor.run(held.wait, 10) for _ in range(3)]
    with pytest.raises(ExecutorFull, match="ledger"):
        executor.run(held.wait, 10)
    held.set()
    assert await asyncio.gather(*running) == [True, True, True]
    assert await asyncio.gather(*(executor.run(held.wait, 10) for _ in range(3))) == [True, True, True]
    executor.close()


async def test_a_call_that_nobody_waits_for_keeps_its_place_until_it_has_ended() -> None:
    executor, held = BoundedExecutor(1, name="ledger", waiting_max=1), threading.Event()
    done: list[int] = []
    running, waiting = executor.run(held.wait, 10), executor.run(done.append, 1)
    running.cancel()
    waiting.cancel()
    await asyncio.sleep(0)  # a future tells the thread's queue in the next turn of the event loop
    again = executor.run(done.append, 2)  # in the place of the one that had not begun
    with pytest.raises(ExecutorFull):
        executor.run(done.append, 3)
    held.set()
    await again
    assert done == [2]
    executor.close()


async def test_it_is_closed_when_what_runs_has_ended() -> None:
    executor, done = BoundedExecutor(1, name="ledger"), list[int]()
    began = threading.Event()

    def work() -> None:
        began.set()
        time.sleep(0.1)
        done.append(1)

    running, waiting = executor.run(work), executor.run(done.append, 2)
    assert began.wait(10)
    executor.close()
    assert done == [1]
    await running
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_work_that_was_refused_by_a_closed_executor_takes_no_place() -> None:
    executor = BoundedExecutor(1, name="ledger", waiting_max=0)
    executor.close()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.run(time.time)
