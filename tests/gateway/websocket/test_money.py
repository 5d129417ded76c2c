"""Money and sessions: each exchange is admitted, with a reservation, as the key and its budget are then."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSServerHandshakeError

from proxy.billing.record import BillableParts, Outcome, Price, Rates
from proxy.billing.reservation import DenialReason
from proxy.gateway.exchange.metering import CutReason
from tests.gateway.inprocess import KEY, Everybody
from tests.gateway.websocket.sockets import (
    TRANSCRIPT,
    USAGE,
    Stage,
    ask,
    begun,
    done,
    named_as,
    priced_stage,
    said,
    stage,
    tell,
)

pytestmark = pytest.mark.io


@pytest.mark.parametrize("why", [DenialReason.MONEY, DenialReason.REQUESTS, DenialReason.PARALLEL])
async def test_a_request_without_a_budget_does_not_go_up_and_the_session_goes_on(on: Stage, why: DenialReason) -> None:
    async with on.talk() as (client, link):
        on.gateway.unlimited.denies = why
        await client.say({"type": "response.create", "event_id": "mine"})
        error = (await client.hear("error"))["error"]
        assert (error["event_id"], error["code"]) == (
            "mine", "insufficient_quota" if why is DenialReason.MONEY else "rate_limit_exceeded",
        )  # fmt: skip
        on.gateway.unlimited.denies = None
        await ask(client, link)
        assert len(link.kinds) == 1
        await tell(client, link, begun(), done())
    assert len(on.records) == on.gateway.outbox.opened == 1


async def test_a_refusal_says_what_is_left_and_what_the_request_would_reserve(tmp_path: Path) -> None:
    async with priced_stage(tmp_path) as on, on.talk() as (client, _):
        on.gateway.unlimited.denies = DenialReason.MONEY
        await client.say({"type": "response.create"})
        message = (await client.hear("error"))["error"]["message"]
        assert message.startswith(
            "This request does not fit the budget of this key (1 of 1 USD left): it would reserve "
        )
        assert "4096 output tokens (4096 assumed for each answer: the request sets no max_tokens" in message


@pytest.mark.parametrize("event", [begun(), said("x"), {"type": f"{TRANSCRIPT}.delta", "item_id": "i", "delta": "x"}])
async def test_what_the_provider_begins_without_a_budget_is_not_delivered(on: Stage, event: dict[str, Any]) -> None:
    """The session ends: what it has begun it would go on with."""
    async with on.talk() as (client, link):
        on.gateway.unlimited.denies = DenialReason.MONEY
        await link.say(event)
        assert (await client.hear())["error"]["code"] == "insufficient_quota"
        code, reason = await client.hear_end()
        assert (code, bool(reason)) == (1008, True)
        await link.until_gone()
    assert on.gateway.outbox.opened == 0


async def test_a_revoked_key_ends_at_its_next_response(tmp_path: Path) -> None:
    keys = Revocable()
    async with stage(tmp_path, keys=keys) as on, on.answering() as (client, link):
        keys.revoked = True
        await tell(client, link, begun(), said("Drei"), done())
        await client.say({"type": "response.create"})
        assert await client.hear_failure() == ("revoked_api_key", 1008)
        assert len(link.kinds) == 1


class Revocable(Everybody):
    """A key that can be revoked."""

    revoked = False

    async def key(self, presented: str | None, address: str | None = None) -> Any:
        return "revoked" if self.revoked else KEY


async def test_an_answer_is_cut_when_its_budget_is_used_up(on: Stage) -> None:
    async with on.answering() as (client, link):
        (turn,) = on.gateway.handler.live
        await tell(client, link, begun(), said("Drei"))
        on.session.cut(CutReason.BUDGET)
        assert await client.hear_failure() == ("insufficient_quota", 1008)
        await link.until_gone()
        assert turn not in on.gateway.handler.live
    record = await on.record()
    assert (record.outcome, record.bills) == (Outcome.BUDGET_CUT, BillableParts.EVERYTHING)


async def test_an_operator_stops_it_with_its_session(on: Stage) -> None:
    async with on.answering() as (client, link):
        (turn,) = on.gateway.handler.live
        await tell(client, link, begun(), said("Drei"))
        assert turn.stop_stream() is True
        on.session.cut(CutReason.BUDGET)  # it may be used up at the same time
        assert await client.hear_failure() == ("stopped_by_operator", 1008)
        await link.until_gone()
        assert turn.stop_stream() is False, "it has ended"
    record = await on.record()
    assert (record.outcome, record.bills) == (Outcome.BUDGET_CUT, BillableParts.EVERYTHING)
    assert record.details["failed"] == "stopped_by_operator"


async def test_an_exchange_that_has_ended_does_not_end_its_session(on: Stage) -> None:
    async with on.answering() as (client, link):
        (turn,) = on.gateway.handler.live
        await tell(client, link, begun(), said("Drei"), done())
        assert turn.stop_stream() is False
        await ask(client, link)
        await tell(client, link, begun(), said("Vier"), done())
    assert {(await on.record()).outcome, (await on.record(1)).outcome} == {Outcome.SERVED}


async def test_a_request_is_held_for_with_its_conversation(tmp_path: Path) -> None:
    async with priced_stage(tmp_path) as on, on.answering(max_output_tokens=100) as (client, link):
        await tell(client, link, begun(), done(usage=USAGE | {"input_tokens": 5000, "output_tokens": 500}))
        audio = b64encode(bytes(48_000 * 10)).decode()
        await client.say({"type": "input_audio_buffer.append", "audio": audio}, {"type": "input_audio_buffer.commit"})
        await link.hear("input_audio_buffer.commit")
        await tell(client, link, {"type": "input_audio_buffer.committed", "item_id": "item_1"})
        await ask(client, link, max_output_tokens=100)
        _, tokens, _ = on.gateway.unlimited.asked[1]
        assert 5500 + 100 + 100 <= tokens <= 5500 + 100 + 110, "what was said, ten seconds, and the answer"


BY_TIME = Price("by-time", (Rates(0, 0, 0, audio_hour=3 * 10**9),), lacking=("input", "output"))


async def test_a_session_that_is_billed_by_its_time_is_refused(on: Stage) -> None:
    named_as(on, "live", "live", BY_TIME)
    with pytest.raises(WSServerHandshakeError) as refusal:
        async with on.talk("/v1/realtime?model=live"):
            pass
    assert refusal.value.status == 403
    async with on.talk() as (client, link):
        await client.say({"type": "session.update", "session": {"model": "live"}})
        assert (await client.hear("error"))["error"]["code"] == "model_billed_by_time"
        assert link.kinds == []
