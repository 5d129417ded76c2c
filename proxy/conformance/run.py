"""One run of the suite: start the provider, send requests, wait for the bills, compare.

Invariants: bills are read before the first request, then until every case has a bill or the time is up, and then once
more, to find double bookings. A gateway is killed only after all other cases have ended, and only if the caller gives
a command to restart it. A case that did not run gets no verdict.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from proxy.conformance.bills import GatewayBill, read_bills
from proxy.conformance.cases import Case
from proxy.conformance.client import GatewayClient, Received, session
from proxy.conformance.provider import CaseProvider, Served, listen
from proxy.conformance.score import NOT_RUN, CaseResult, Truth, result_of

# Cases at once: enough to load a gateway, few enough for a slow machine.
AT_ONCE = 4
# Interval at which the bills are read.
POLL_S = 1.0
# How long a gateway may take to start again, and the command that restarts it.
RESTART_S_MAX = 120.0
# Time within which the provider notices that a client left.
LEAVE_S_MAX = 10.0
_UNAUTHORIZED = (401, 403)
_NOT_RUN = Truth(0, 0, 0, False, None)


class RunError(Exception):
    """The suite cannot be run; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cases to run, the gateway, and the command that prints its bills."""

    gateway: str
    key: str = field(repr=False)
    bills: str
    """shell command that prints the bills"""
    cases: Sequence[Case]
    host: str = "127.0.0.1"
    port: int = 9911
    wait_s: float = 30.0
    """longest wait for the bills"""
    restart: str | None = None
    """a command that kills the gateway (SIGKILL) and starts it again"""


async def run(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> list[CaseResult]:
    """Run the cases of `plan`. Raises RunError, UnreadableBill, OSError."""
    provider, server = await listen(plan.cases, plan.host, plan.port)
    try:
        before = await read_bills(plan.bills)
        async with session() as connections:
            client = GatewayClient(connections, plan.gateway, plan.key)
            received = await _ask_all(plan, client, progress)
            await _ended(provider)
        progress("waiting for the bills")
        booked = await _bills(plan, provider, before)
    finally:
        server.close()
    return [_result(case, provider, received, booked) for case in plan.cases]


def _result(case: Case, provider: CaseProvider, received: Mapping[str, list[Received]], booked: _Booked) -> CaseResult:
    if case.model not in received:
        return CaseResult(case, NOT_RUN, NOT_RUN, _NOT_RUN, GatewayBill())
    return result_of(case, _served(provider, case), received[case.model], _bill(case, booked))


# -- the requests ------------------------------------------------------------------------------------------------


async def _ask_all(plan: Plan, client: GatewayClient, progress: Callable[[str], None]) -> dict[str, list[Received]]:
    """The answers by model. The first request runs alone, to check that the gateway accepts the key."""
    plain = [case for case in plan.cases if case.kills_after is None]
    received: dict[str, list[Received]] = {}

    async def one(case: Case) -> None:
        progress(case.upstream_model)
        received[case.model] = await _ask(case, client)

    if not await client.listens():
        raise RunError(f"--gateway {plan.gateway}: no answer")
    if plain:
        await one(plain[0])
        status = received[plain[0].model][0].status
        if status in _UNAUTHORIZED:
            raise RunError(f"--key: the gateway refuses it (status {status})")
    await _each(plain[1:], one)
    if plan.restart is not None:
        for case in plan.cases:
            if case.kills_after is not None:
                progress(case.upstream_model)
                received[case.model] = [await _killed(case, client, plan.restart)]
    return received


async def _each(cases: Sequence[Case], do: Callable[[Case], Awaitable[None]]) -> None:
    """Run `do` for all cases, AT_ONCE at a time."""
    left = list(reversed(cases))

    async def worker() -> None:
        while left:
            await do(left.pop())

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def _ask(case: Case, client: GatewayClient) -> list[Received]:
    if case.client.at_once:
        return list(await asyncio.gather(*(client.ask(case) for _ in range(case.client.times))))
    return [await client.ask(case) for _ in range(case.client.times)]


async def _killed(case: Case, client: GatewayClient, restart: str) -> Received:
    """Send a request; kill and restart the gateway in the middle of the answer."""
    stop = asyncio.Event()
    failed: RunError | None = None
    async with asyncio.TaskGroup() as group:
        request = group.create_task(client.ask(case, stop))
        waiting = group.create_task(stop.wait())
        await asyncio.wait({request, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if stop.is_set():
            try:
                await _restarted(client, restart)
            except RunError as failure:
                failed = failure
                request.cancel()
    if failed is not None:
        raise failed
    return request.result()


async def _restarted(client: GatewayClient, restart: str) -> None:
    child = await asyncio.create_subprocess_shell(
        restart, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(RESTART_S_MAX):
            if await child.wait():
                raise RunError(f"--restart: the command failed with exit code {child.returncode}")
            await _until(client.listens)
    except TimeoutError:
        raise RunError(f"--restart: the gateway does not answer after {RESTART_S_MAX:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _ended(provider: CaseProvider) -> None:
    """Wait until the provider's exchanges have ended. A gateway that drains reads after its client has left."""
    exchanges = [one.exchange for served in provider.served.values() for one in served]

    async def over() -> bool:
        return all(exchange.duration_s is not None for exchange in exchanges)

    with suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_S_MAX):
            await _until(over)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():  # noqa: ASYNC110  another process changes the condition, without a notification
        await asyncio.sleep(0.05)


# -- the bills ---------------------------------------------------------------------------------------------------

_Booked = Mapping[str, GatewayBill]


async def _bills(plan: Plan, provider: CaseProvider, before: _Booked) -> _Booked:
    """The amounts booked since `before`, once every exchange has a line or the time is up."""
    due = {
        case.model: sum(exchange.scripted.status == 200 for exchange in _served(provider, case)) for case in plan.cases
    }
    deadline = time.monotonic() + plan.wait_s
    booked = await _since(plan, before)
    while time.monotonic() < deadline and any(_bill(case, booked).lines < due[case.model] for case in plan.cases):
        await asyncio.sleep(POLL_S)
        booked = await _since(plan, before)
    await asyncio.sleep(POLL_S)
    return await _since(plan, before)


def _served(provider: CaseProvider, case: Case) -> Sequence[Served]:
    return provider.served.get(case.upstream_model, [])


async def _since(plan: Plan, before: _Booked) -> _Booked:
    now = await read_bills(plan.bills)
    return {model: bill - before.get(model, GatewayBill()) for model, bill in now.items()}


def _bill(case: Case, booked: _Booked) -> GatewayBill:
    """The bill of a case, under the client's or the provider's model name, because a gateway may book either."""
    return booked.get(case.model, GatewayBill()) + booked.get(case.upstream_model, GatewayBill())
