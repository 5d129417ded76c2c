"""`Idempotency-Key`: whatever a client's retries do, it is billed once."""

from __future__ import annotations

from proxy.demo.script import Send, Stall
from tests.budgets.deployed.limited import Limited, code
from tests.support.net import ask, chat_request, connect
from tests.support.provider import error_script

TOKEN = {"Idempotency-Key": "order-4711"}


async def test_a_repeat_of_a_finished_answer_gets_the_same_and_is_not_billed(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.model(20)
    first = await limited.post(key, model, headers=TOKEN)
    again = await limited.post(key, model, headers=TOKEN)
    assert (first.status, again.status) == (200, 200)
    assert again.body == first.body
    assert again.header("x-tokenweir-exchange") == first.header("x-tokenweir-exchange")
    assert again.header("idempotent-replayed") == "true"
    assert len(limited.provider.log(model)) == 1
    limited.entries(key_id, 1)


async def test_a_repeat_of_a_stream_is_told_which_it_was(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.model(20)
    first = await limited.post(key, model, stream=True, headers=TOKEN)
    again = await limited.post(key, model, stream=True, headers=TOKEN)
    assert (again.status, code(again)) == (409, "idempotency_served")
    exchange = first.header("x-tokenweir-exchange")
    assert exchange is not None
    assert exchange.encode() in again.body
    assert again.header("x-should-retry") == "false", "SDKs try a 409 again by themselves"
    limited.entries(key_id, 1)


async def test_a_repeat_while_the_first_runs(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.provider.script("runs", (Send(b"data: {}\n\n"), Stall()))
    async with await connect(limited.url) as client:
        await client.send(chat_request(ask(model), key=key, headers=TOKEN))
        first = await client.read_head()
        again = await limited.post(key, model, stream=True, max_tokens=None, headers=TOKEN)
        assert (again.status, code(again)) == (409, "idempotency_running")
        assert again.header("x-tokenweir-exchange") == first.header("x-tokenweir-exchange")
    limited.entries(key_id, 1)


async def test_of_twenty_at_once_one_goes_up(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.model(20, first_ms=200)
    answers = await limited.many(key, model, 20, headers=TOKEN)
    assert sorted(one.status for one in answers) == [200] + [409] * 19
    assert len(limited.provider.log(model)) == 1
    limited.entries(key_id, 1)


async def test_another_body_under_the_same_token(limited: Limited) -> None:
    _, key = limited.key()
    model = limited.model(20)
    await limited.post(key, model, headers=TOKEN)
    other = await limited.post(key, model, max_tokens=99, headers=TOKEN)
    assert (other.status, code(other)) == (422, "idempotency_mismatch")


async def test_another_keys_token_is_another_token(limited: Limited) -> None:
    (_, one), (_, two) = limited.key(), limited.key()
    model = limited.model(20)
    assert (await limited.post(one, model, headers=TOKEN)).status == 200
    answer = await limited.post(two, model, headers=TOKEN)
    assert (answer.status, answer.header("idempotent-replayed")) == (200, None)


async def test_what_was_not_billed_may_be_tried_again(limited: Limited) -> None:
    key_id, key = limited.key()
    name = limited.provider.script("mends", error_script(500, "not now"))
    assert (await limited.post(key, name, headers=TOKEN)).status == 500
    limited.provider.script(name, error_script(429, "slowly"))
    assert (await limited.post(key, name, headers=TOKEN)).status == 429
    limited.entries(key_id, 2)


async def test_what_was_refused_may_be_tried_again(limited: Limited) -> None:
    key_id, key = limited.key("--budget", "0")
    model = limited.model(20)
    assert (await limited.post(key, model, headers=TOKEN)).status == 402
    limited.change("keys", "update", key_id, "--budget", "1")
    await limited.until_served(key, model, headers=TOKEN)


async def test_a_token_that_is_none(limited: Limited) -> None:
    _, key = limited.key()
    for token in ("", "x" * 256, "a\tb"):
        refused = await limited.post(key, limited.model(), headers={"Idempotency-Key": token})
        assert (refused.status, code(refused)) == (400, "invalid_header"), token
