"""Requests and tokens per minute, and exchanges at once, as a client and its SDK meet them."""

from __future__ import annotations

import asyncio

from tests.budgets.deployed.limited import Limited, code, served
from tests.support.net import ask, chat_request, connect


async def test_requests_per_minute(limited: Limited) -> None:
    _, key = limited.key("--rpm", "5")
    model = limited.model(3, first_ms=30)
    answers = await limited.many(key, model, 20)
    assert served(answers) == 5
    [refused, *_] = [one for one in answers if one.status == 429]
    assert code(refused) == "rate_limit_exceeded"
    wait_s = int(refused.header("retry-after") or 0)
    assert 50 <= wait_s <= 61
    assert refused.header("x-ratelimit-limit-requests") == "5"
    assert refused.header("x-ratelimit-remaining-requests") == "0"


async def test_every_answer_says_what_is_left(limited: Limited) -> None:
    _, key = limited.key("--rpm", "3", "--tpm", "100000")
    model = limited.model(3)
    left = []
    for stream in (False, True):
        answer = await limited.post(key, model, stream=stream)
        left.append(answer.header("x-ratelimit-remaining-requests"))
        assert answer.header("x-ratelimit-limit-tokens") == "100000"
        assert (answer.header("x-ratelimit-reset-tokens") or "").endswith("s")
    assert left == ["2", "1"]
    refused = await limited.post(key, "m", max_tokens=0)
    assert refused.status == 400, "not admitted, and not counted"
    assert (await limited.post(key, model)).header("x-ratelimit-remaining-requests") == "0"


async def test_tokens_per_minute_are_held_and_then_as_they_were(limited: Limited) -> None:
    _, key = limited.key("--tpm", "1000")
    model = limited.model(10)
    first = await limited.post(key, model, max_tokens=900)
    assert first.status == 200
    assert int(first.header("x-ratelimit-remaining-tokens") or 0) < 100
    await limited.until_served(key, model, max_tokens=900)
    too_much = await limited.post(key, model, max_tokens=5000)
    assert (too_much.status, too_much.header("retry-after")) == (429, None)
    assert too_much.header("x-should-retry") == "false"


async def test_exchanges_at_once(limited: Limited) -> None:
    _, key = limited.key("--parallel", "3")
    model = limited.model(5, first_ms=400)
    assert served(await limited.many(key, model, 10)) == 3
    assert served(await limited.many(key, model, 10)) == 3, "the slots are free again"


async def test_a_slot_is_free_when_the_client_leaves(limited: Limited) -> None:
    _, key = limited.key("--parallel", "1")
    slow = limited.model(50, pace_ms=100)
    for _ in range(5):
        async with await connect(limited.url) as client:
            await client.send(chat_request(ask(slow), key=key))
            assert (await client.read_head()).status == 200
            client.reset()
        await limited.until_served(key, limited.model(2))


async def test_limits_that_change_count_within_a_second(limited: Limited) -> None:
    key_id, key = limited.key("--rpm", "1")
    model = limited.model(3)
    assert served([await limited.post(key, model) for _ in range(3)]) == 1
    limited.change("keys", "update", key_id, "--rpm", "none")
    await limited.until_served(key, model)
    limited.change("keys", "block", key_id)
    async with asyncio.timeout(5):
        while (blocked := await limited.post(key, model)).status == 200:
            await asyncio.sleep(0.05)
    assert (blocked.status, code(blocked)) == (401, "blocked_api_key")
