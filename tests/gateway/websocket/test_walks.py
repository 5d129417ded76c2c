"""Random sessions: whatever both sides say in whichever order, each exchange ends once and nothing passes uncounted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import ClientError, WSMsgType

from proxy.billing.record import Outcome
from proxy.billing.reservation import DenialReason
from proxy.metering.usage import UsageSource
from proxy.settings import Drain
from tests.gateway.websocket.sockets import (
    CREATE,
    REALTIME,
    RESPONSES,
    TRANSCRIPT,
    USAGE,
    Client,
    Stage,
    begun,
    completed,
    done,
    said,
    stage,
)
from tests.support.examples import repeats
from tests.support.socket_provider import Link

pytestmark = pytest.mark.io

WALKS, STEPS_MAX = repeats(40, gate=6), 14
# What comes of an answer that has ended, and is nobody's.
LATE = "late"
NEVER = {Outcome.CRASHED, Outcome.UPSTREAM_STALLED}

Step = Callable[[], Awaitable[Any]]


class Walk:
    """One session and what its client gets."""

    def __init__(self, on: Stage, client: Client, rng: Random, number: int, *, realtime: bool) -> None:
        """`number`: of the provider's end of it, once there is one."""
        self.on, self.client, self.rng, self.realtime = on, client, rng, realtime
        self.heard: list[str] = []
        """output that the client got"""
        self._number = number
        self._next = 2  # the newest answer
        self._over: set[str] = set()  # answers that have ended

    async def listen(self) -> None:
        """Until the session is over."""
        while (message := await self.client.socket.receive()).type in (WSMsgType.TEXT, WSMsgType.BINARY):
            event = json.loads(message.data) if message.type is WSMsgType.TEXT else {}
            if event.get("delta") not in (None, LATE):
                self.heard.append(event["delta"])

    @property
    def link(self) -> Link | None:
        links = self.on.provider.links
        return links[self._number] if len(links) > self._number else None

    async def step(self) -> None:
        name = self.rng.choice(list(self._steps))
        with suppress(ConnectionError, ClientError):
            await self._steps[name]()
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.choice((0, 0, 0.002, 0.01)))

    @property
    def _steps(self) -> Mapping[str, Step]:
        number = f"resp_{self._next - self.rng.randint(0, 2)}"
        lane = {} if self.realtime or self.rng.random() < 0.5 else {"stream_id": "left"}
        ask = {"type": "response.create"} if self.realtime else {**CREATE, **lane}
        end = done(number) if self.realtime else completed(number, **lane)
        item = f"item_{self._next}"
        text, spoken = (LATE if self.realtime and name in self._over else "Was?" for name in (number, item))
        steps: dict[str, Step] = {
            "ask": lambda: self.client.say(ask),
            "say": lambda: self.client.say({"type": "input_audio_buffer.append", "audio": "AAAA"}),
            "nonsense": lambda: self.client.say('{"type": "response.create", "type": "x"}'),
            "deny": self._deny,
            "begin": lambda: self._begins(number, begun(number, **lane)),
            "delta": lambda: self._provider(said(text, number, **lane)),
            "end": lambda: self._ends(number, end),
            "next": self._count,
            "whole": lambda: self._ends(number, begun(number, **lane), said("Vier", number, **lane), end),
            "fail": lambda: self._provider({"type": "error", "error": {"code": "x", "type": "server_error"}, **lane}),
            "hear": lambda: self._provider({"type": f"{TRANSCRIPT}.delta", "item_id": item, "delta": spoken}),
            "heard": lambda: self._ends(
                item,
                {"type": f"{TRANSCRIPT}.completed", "item_id": item, "transcript": "Was?", "usage": {"seconds": 2}},
            ),
            "unknown": lambda: self._provider({"type": "conversation.distilled", "usage": USAGE}),
            "binary": lambda: self._provider(b"\x00\x01"),
        }
        if not self.realtime:
            steps.pop("heard")  # a usage in seconds is known to Realtime only
        return steps

    async def _provider(self, *events: dict[str, Any] | bytes) -> None:
        if self.link is not None:
            await self.link.say(*events)

    async def _begins(self, name: str, event: dict[str, Any]) -> None:
        self._over.discard(name)
        await self._provider(event)

    async def _ends(self, name: str, *events: dict[str, Any]) -> None:
        self._over.add(name)
        await self._provider(*events)

    async def _count(self) -> None:
        self._next += 1

    async def _deny(self) -> None:
        unlimited = self.on.gateway.unlimited
        unlimited.denies = None if unlimited.denies is not None else self.rng.choice(list(DenialReason))

    async def end(self) -> None:
        how = self.rng.choice(("close", "abort", "provider closes", "provider aborts", "stop", "stop now"))
        if how in ("stop", "stop now"):
            for session in list(self.on.gateway.sockets.sessions):
                session.stop()
                if how == "stop now":
                    session.stop_now()
        if how == "abort" and not self.client.socket.closed:
            self.client.abort()
        elif self.link is not None and how == "provider closes":
            await self.link.socket.close(code=4000)
        elif self.link is not None and how == "provider aborts":
            transport = self.link.socket._req.transport  # type: ignore[union-attr]
            if transport is not None:
                transport.abort()
        await asyncio.sleep(0.01)
        await self.client.socket.close()


@pytest.mark.hypothesis
@pytest.mark.parametrize("policy", ["cancel", "drain"])
@pytest.mark.parametrize("path", [REALTIME, RESPONSES])
async def test_whatever_is_said_each_exchange_ends_once(path: str, policy: str, tmp_path: Path) -> None:
    heard = 0
    async with stage(tmp_path, on_client_disconnect=policy, drain=Drain(seconds=0.2)) as on:
        for seed in range(WALKS):
            rng, before, number = Random(f"{path} {policy} {seed}"), len(on.records), len(on.provider.links)
            async with on.client(path) as client:
                walk = Walk(on, client, rng, number, realtime=path == REALTIME)
                if not walk.realtime:
                    await client.say(CREATE)
                await on.provider.link(number)
                async with asyncio.TaskGroup() as both:
                    both.create_task(walk.listen())
                    for _ in range(rng.randint(1, STEPS_MAX)):
                        await walk.step()
                    await walk.end()
            on.gateway.unlimited.denies = None
            await on.until_over()
            records = on.records[before:]
            assert not {record.outcome for record in records} & NEVER, seed
            delivered = [record for record in records if record.events]
            assert sum(record.events for record in delivered) >= len(walk.heard), f"{seed}: uncounted"
            for record in delivered:
                is_free = record.reading.source is UsageSource.NONE
                assert not (is_free and record.details.get("evidence")), f"{seed}: {record}"
            heard += len(walk.heard)
    assert heard, "no walk delivered anything"
