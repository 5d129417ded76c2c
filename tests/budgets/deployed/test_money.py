"""Budgets and credit, as a client meets them: what fits is served, nothing else, and the books agree."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from proxy.demo.script import Send, Stall, json_script
from tests.budgets.deployed.limited import Limited, code, served
from tests.support.net import ask, chat_request, connect
from tests.support.sdks import openai
from tests.support.sse import events

FITS_TEN = ("--budget", "0.001", "--budget-window", "none")


async def test_what_fits_is_served_and_no_more(limited: Limited) -> None:
    key_id, key = limited.key(*FITS_TEN)
    model = limited.model(100)
    answers = [await limited.post(key, model) for _ in range(12)]
    assert [one.status for one in answers] == [200] * 10 + [402] * 2
    assert code(answers[-1]) == "insufficient_quota"
    entries = limited.entries(key_id, 10)
    assert {entry["charge_usd"] for entry in entries} == {"0.0001"}
    assert {entry["details"]["held_usd"] for entry in entries} == {"0.0001"}
    assert (await limited.at_rest(key_id)).spent == 1_000_000
    assert limited.counters()[key_id]["spent_usd"] == "0.001"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_crowd_at_once_against_a_budget_that_fits_ten(limited: Limited, stream: bool) -> None:
    key_id, key = limited.key(*FITS_TEN)
    model = limited.model(100, first_ms=50)
    assert served(await limited.many(key, model, 40, stream=stream)) == 10
    limited.entries(key_id, 10)
    assert (await limited.at_rest(key_id)).spent == 1_000_000


async def test_what_was_held_and_not_used_is_free_again(limited: Limited) -> None:
    key_id, key = limited.key(*FITS_TEN)
    model = limited.model(10)
    statuses = [(await limited.post(key, model, max_tokens=1000)).status for _ in range(3)]
    assert statuses == [200, 402, 402], "the whole budget was held, and 1 % was used: less than the next wants is left"
    assert [(await limited.post(key, model, max_tokens=99)).status for _ in range(10)] == [200] * 10
    assert (await limited.at_rest(key_id)).spent == 110_000


async def test_a_request_without_a_limit_does_not_pin_a_budget(limited: Limited) -> None:
    _, key = limited.key("--budget", "0.01")  # 10,000 tokens: twice the default and a bit
    model = limited.model(20, first_ms=300)
    assert served(await limited.many(key, model, 3, max_tokens=None)) == 2
    assert (await limited.post(key, model, max_tokens=999_999)).status == 402
    assert (await limited.post(key, model, max_tokens=9_000)).status == 200


MESSAGES = [{"role": "user", "content": "How much?"}]
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "How much?"}]}]}
BLOCKS = [{"role": "user", "content": [{"text": "How much?"}]}]
# Path → what a request has beside its model.
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "How much?"},
    "/v1/responses": {"input": "How much?"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4096},
    "/v1beta/models/many%2Fa:generateContent": CONTENTS,
    "/v1beta/models/many%2Fa:streamGenerateContent": CONTENTS,
    "/v2/chat": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "How much?"},
    "/v1/fim/completions": {"prompt": "How much?"},
    "/openai/deployments/many%2Fa/chat/completions?api-version=1": {"messages": MESSAGES},
    "/model/many%2Fa/converse": {"messages": BLOCKS},
}


async def test_a_refusal_says_why_in_every_dialect(limited: Limited) -> None:
    """For a key that has spent nothing, and whose request reserves more than the budget."""
    _, key = limited.key("--budget", "0.001", "--budget-window", "none")
    for path, asked in DIALECTS.items():
        async with await connect(limited.url) as client:
            await client.send(chat_request({"model": "many/a", **asked}, path=path, key=key))
            response = await client.read(15.0)
        text = response.body.decode()
        assert response.status == 402, text
        assert "the budget of this key (0.001 of 0.001 USD left): it would reserve 0.004096 USD for " in text, path
        assert "4096 output tokens" in text, path
        assert ("(4096 assumed for each answer: the request sets no max_tokens" in text) is (path[4:] != "messages")
        assert "This budget does not reset." in text, path


async def test_a_budget_that_is_spent_says_so_and_when_it_resets(limited: Limited) -> None:
    _, key = limited.key("--budget", "0.0001", "--budget-window", "calendar_month")
    model = limited.model(100)
    assert (await limited.post(key, model)).status == 200
    error = json.loads((await limited.post(key, model, max_tokens=1)).body)["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert error["message"].startswith(
        "You exceeded your current quota: the budget of this key is exhausted (0 of 0.0001"
    )
    assert re.search(r"The budget resets at \d{4}-\d\d-01T00:00:00Z\.$", error["message"])


async def test_max_tokens_of_minus_one_is_held_as_no_limit_and_goes_up_as_sent(limited: Limited) -> None:
    key_id, key = limited.key("--budget", "0.01")
    models = [limited.model(20) for _ in range(2)]
    assert (await limited.post(key, models[0], max_tokens=-1)).status == 200
    assert (await limited.post(key, models[1], max_tokens=None)).status == 200
    one, other = limited.entries(key_id, 2)
    assert one["details"]["held_usd"] == other["details"]["held_usd"]
    (seen,) = limited.provider.log(models[0])
    assert seen["body"]["max_tokens"] == -1


@pytest.mark.parametrize("level", ["project", "organization"])
async def test_a_request_must_pass_every_level(limited: Limited, level: str) -> None:
    limits = {"project": (), "organization": (), level: FITS_TEN}
    organization = limited.change("accounts", "create-organization", f"o-{level}", *limits["organization"])
    project = limited.change(
        "accounts", "create-project", f"p-{level}", "--organization", organization["account_id"], *limits["project"]
    )
    keys = [limited.key("--project", project["account_id"]) for _ in range(2)]
    _, free = limited.key()
    model = limited.model(100, first_ms=50)
    answers = await asyncio.gather(*(limited.post(keys[n % 2][1], model) for n in range(20)))
    assert served(answers) == 10, "two keys share it"
    assert (await limited.post(free, model)).status == 200, "another project's key does not"


async def test_prepaid_is_spent_and_topped_up(limited: Limited) -> None:
    key_id, key = limited.key("--prepaid")
    model = limited.model(100)
    assert (await limited.post(key, model)).status == 402
    limited.tokenweir.command("credit", "add", "--key", key_id, "--usd", "0.0002", "--reason", "paid")
    await limited.until_served(key, model)  # the next second's look at the ledger brings it
    assert (await limited.post(key, model)).status == 200
    assert (await limited.post(key, model)).status == 402
    kinds = [entry["kind"] for entry in limited.entries(key_id, 3)]
    assert sorted(kinds) == ["credit", "usage", "usage"]


async def test_a_model_without_a_price_is_not_for_a_key_with_a_budget(limited: Limited) -> None:
    _, key = limited.key(*FITS_TEN)
    refused = await limited.post(key, "priceless/nobody-knows-this-model")
    assert (refused.status, code(refused)) == (403, "model_unpriced")


async def test_embeddings_have_a_price_of_the_built_in_book_and_chat_with_their_model_has_none(
    limited: Limited,
) -> None:
    key_id, key = limited.key(*FITS_TEN)
    usage = {"prompt_tokens": 300, "total_tokens": 300}
    limited.provider.script("text-embedding-3-small", json_script({"object": "list", "data": [], "usage": usage}))
    model = "listed/text-embedding-3-small"
    async with await connect(limited.url) as client:
        await client.send(chat_request({"model": model, "input": "weir"}, path="/v1/embeddings", key=key))
        assert (await client.read(15)).status == 200
    (entry,) = limited.entries(key_id, 1)
    assert (entry["charge_usd"], entry["details"]["billed"]) == ("0.000006", "prompt+output")
    assert "output" not in entry["details"]["price"]
    refused = await limited.post(key, model)
    assert (refused.status, code(refused)) == (403, "model_unpriced")


async def test_a_refused_request_leaves_no_entry_and_reaches_nobody(limited: Limited) -> None:
    key_id, key = limited.key("--budget", "0")
    assert (await limited.post(key, limited.model())).status == 402
    assert limited.provider.log() == []
    limited.entries(key_id, 0)


@pytest.mark.thorough
async def test_the_sdk_does_not_try_a_spent_budget_again(limited: Limited) -> None:
    _, key = limited.key("--budget", "0")
    client = openai.AsyncOpenAI(api_key=key, base_url=limited.tokenweir.base_url, max_retries=3)
    before = _refusals(await _metrics(limited))
    with pytest.raises(openai.APIStatusError) as refused:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
    assert (refused.value.status_code, refused.value.code) == (402, "insufficient_quota")
    assert _refusals(await _metrics(limited)) == before + 1
    await client.close()


async def test_what_failed_costs_nothing_and_holds_nothing(limited: Limited) -> None:
    key_id, key = limited.key(*FITS_TEN)
    broken = limited.provider.script("broken", (Send(b"{"), Stall()))
    async with await connect(limited.url) as client:
        await client.send(chat_request(ask(broken, max_tokens=1000, stream=False), key=key))
        await asyncio.to_thread(limited.provider.until, lambda log: len(log) >= 1, broken)
    limited.entries(key_id, 1)
    await limited.at_rest(key_id)
    assert served(await limited.many(key, limited.model(100), 20)) == 10


async def test_a_stream_that_costs_more_than_is_left_finishes_by_default(limited: Limited) -> None:
    key_id, key = limited.key("--budget", "0.0047")  # the default holds 4,096 of 4,700 tokens
    model = limited.long_model(6000)
    answer = await limited.post(key, model, stream=True, max_tokens=None)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert (await limited.post(key, model, max_tokens=1)).status == 402
    [entry] = limited.entries(key_id, 1)
    assert (entry["outcome"], entry["charge_usd"]) == ("served", "0.006")


@pytest.mark.waits
async def test_or_is_cut_between_two_events_if_the_key_wills_so(limited: Limited) -> None:
    key_id, key = limited.key("--budget", "0.0047", "--on-exhausted", "cut")
    model = limited.long_model(9000, pace_ms=4)
    answer = await limited.post(key, model, stream=True, max_tokens=None)
    assert answer.ended != "complete", "no clean end of a body that was not whole"
    *_, last = events(answer.body)
    assert b"[DONE]" not in answer.body
    assert last.json["error"]["code"] == "insufficient_quota"
    [entry] = limited.entries(key_id, 1)
    assert (entry["outcome"], entry["usage_source"]) == ("budget_cut", "estimated")
    assert 3000 < entry["completion_tokens"] < 9000
    assert float(entry["charge_usd"]) > 0
    [seen] = limited.provider.ended(1, model)
    assert (seen["ended"], seen["completion_tokens"] < 9000) == ("client_left", True), "the provider was told to stop"


def _refusals(text: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith('tokenweir_budget_rejections_total{reason="money"}')]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


async def _metrics(limited: Limited) -> str:
    async with await connect(limited.url) as client:
        await client.send(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
        return (await client.read()).body.decode()
