"""A reasoning model that is left before its first word: its silence is said, and billed where that is set, also after a
kill.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from proxy.demo.script import Script, Send, Stall, Wait
from tests.gateway.streams import told
from tests.support.net import RawClient, ask, chat_request, connect, post_chat
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COST, PRICE, Tokenweir

ROLE, *WORDS = told("openai", 5)
SILENT_MS, HIDDEN = 250, 500
USAGE = {
    "prompt_tokens": 21, "completion_tokens": HIDDEN + 5, "total_tokens": HIDDEN + 26,
    "completion_tokens_details": {"reasoning_tokens": HIDDEN},
}  # fmt: skip
LAST = b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}).encode()
PATIENCE_S = 20.0


async def begun(tokenweir: Tokenweir, key: str, model: str) -> RawClient:
    """A client that has read all that comes before the silence."""
    client = await connect(tokenweir.url)
    await client.send(chat_request(ask(model, usage=True), key=key))
    head = await client.read_head(PATIENCE_S)
    await client.read_body(head, until=ROLE, timeout_s=PATIENCE_S)
    return client


async def entry_of(tokenweir: Tokenweir, model: str, outcome: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [one for one in tokenweir.read_ledger() if (one["model"], one["outcome"]) == (model, outcome)]
            if found:
                return found[0]
            await asyncio.sleep(0.02)


async def test_silence_is_said_and_billed_where_it_is_set(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider
) -> None:
    plain = {"provider": "scripted", "price": PRICE, "cost": COST}
    running = tokenweir(
        provider_settings={"on_client_disconnect": "cancel", "hidden_by_time": True},
        models={"billed/*": plain, "said/*": plain | {"hidden_by_time": False}},
    )
    key = running.key()
    words = [Send(word) for word in WORDS[:-2]]
    provider.script(
        "thinker", Script(steps=(Send(ROLE), Wait(SILENT_MS), *words, Send(LAST + b"\n\n"), Send(WORDS[-1])))
    )
    for answer in await asyncio.gather(
        *(post_chat(running.url, ask("said/thinker", usage=True), key=key) for _ in range(3))
    ):
        assert answer.ended == "complete"
    provider.script("thinker", Script(steps=(Send(ROLE), Stall())))
    said, billed = await begun(running, key, "said/thinker"), await begun(running, key, "billed/thinker")
    provider.script("other", Script(steps=(Send(ROLE), Stall())))
    other = await begun(running, key, "billed/other")
    dying = await begun(running, key, "billed/thinker")
    await asyncio.sleep(0.6)
    for client in (said, billed, other):
        client.close()
    entries = [
        await entry_of(running, model, "client_left") for model in ("said/thinker", "billed/thinker", "billed/other")
    ]
    of_said, of_billed, of_other = entries
    rate = HIDDEN / (SILENT_MS / 1000)  # at most: a silence is never shorter than it was made
    assert of_said["completion_tokens"] == 0
    assert 0 < of_said["details"]["hidden_by_time"] <= rate * of_said["duration_ms"] / 1000
    assert of_billed["completion_tokens"] == of_billed["details"]["hidden_by_time"]
    assert of_billed["details"]["hidden_by_time"] >= rate * 0.6 * 0.2, "on a machine five times as slow"
    assert (of_billed["estimator"], of_billed["details"]["hidden_reasoning"]) == (
        "silence-1", of_billed["completion_tokens"],
    )  # fmt: skip
    assert float(of_billed["charge_usd"]) > float(of_said["charge_usd"]) > 0
    assert (of_other["completion_tokens"], "hidden_by_time" in of_other["details"]) == (0, False), (
        "nobody told its rate"
    )
    await asyncio.sleep(1.5)  # progress is noted every two seconds
    running.kill()
    dying.close()
    running.start()
    crashed = await entry_of(running, "billed/thinker", "crashed")
    assert crashed["completion_tokens"] == crashed["details"]["hidden_by_time"]
    assert 0 < crashed["completion_tokens"] <= rate * crashed["duration_ms"] / 1000
    assert crashed["duration_ms"] >= 1_900, "the last sign of life"
    assert crashed["details"]["hidden_by_time"] > of_billed["details"]["hidden_by_time"]
