"""OpenAI's files and batches with its own SDK: owned, reserved for, metered once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from proxy.billing.batch import BatchState
from proxy.billing.entries import LedgerEntry
from proxy.metering.stored_objects.api import PageAsked
from proxy.settings.providers import Refuted, UsageSettings
from tests.gateway.batches.asking import (
    CHAT,
    LINE_NUSD,
    ended,
    jsonl,
    line,
    lines_of,
    made,
    ordered,
    own_entries,
    stored,
    uploaded,
)
from tests.gateway.batches.site import KEYS, Proxy, Site
from tests.support.batch_provider import SECRET, USAGE, BatchProvider, Document, chat_answer
from tests.support.clients import Gpt, refusal
from tests.support.sdks import openai

pytestmark = pytest.mark.io


async def booked(at: Site, client: openai.AsyncOpenAI, batch_id: str, **ending: Any) -> list[LedgerEntry]:
    """The entries of its lines, once it has ended, by `BatchProvider.end`, and its results are downloaded."""
    at.provider.end(batch_id, **ending)
    await client.files.content(await ended(client, batch_id))
    return lines_of(at)


async def test_a_batch_from_its_file_to_its_results(provider: BatchProvider, at: Site, gpt: Gpt) -> None:
    client = gpt()
    batch_id = await made(client, line("a"), line("b"), line("c"))
    held = at.budget.total
    assert held > 0
    assert (await client.batches.retrieve(batch_id)).status == "validating"
    assert at.entries() == []

    def answered(one: Document) -> Document | None:
        return None if one["custom_id"] == "b" else chat_answer(one["body"]["model"])

    provider.end(batch_id, answered=answered)
    output_id = await ended(client, batch_id)
    for _ in range(3):
        assert (await client.files.content(output_id)).content == provider.contents[output_id]
    lines, (own,) = lines_of(at), own_entries(at)
    assert [(one.details["custom_id"], one.charge_nusd) for one in lines] == [("a", LINE_NUSD), ("c", LINE_NUSD)]
    for one in lines:
        assert (one.usage_source, one.endpoint, one.model, one.key_id) == ("reported", CHAT, "electron", "anna")
        assert (one.prompt_tokens, one.cached_tokens, one.completion_tokens) == (11, 3, 7)
        assert one.details["price"]["multipliers"] == {"tier:batch": "0.5"}
        assert (one.details["batch_id"], one.started_at, one.duration_ms) == (batch_id, own.started_at, 60_000)
    assert (own.charge_nusd, own.outcome) == (0, "served")
    assert (own.details["batch_id"], own.endpoint) == (batch_id, "/v1/batches")
    assert own.details["batch"] == {"lines": 3, "succeeded": 2, "failed": 1, "status": "completed"}
    assert held >= 2 * LINE_NUSD
    assert len(at.entries()) == 3


async def test_the_provider_sees_its_own_key_and_our_lines(provider: BatchProvider, gpt: Gpt) -> None:
    await made(gpt(), line("a", "alias", usage={"include": True}))
    assert {key for _, _, key in provider.asked} == {f"Bearer {SECRET}"}
    (content,) = provider.contents.values()
    (sent,) = provider.requests["batch_0002"]
    assert sent["body"]["model"] == "electron-2026"
    assert "usage" not in sent["body"]
    assert content.count(b"\n") == 1


async def test_a_line_is_booked_under_the_name_that_was_asked_for(at: Site, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a", "alias"))
    (entry,) = await booked(at, gpt(), batch_id, answered=lambda one: chat_answer(one["body"]["model"]))
    assert (entry.model, entry.upstream_model) == ("alias", "electron-2026")


async def test_other_keys_have_nothing_of_it(provider: BatchProvider, gpt: Gpt) -> None:
    file_id = await uploaded(gpt("anna"), line("a"))
    batch_id = await ordered(gpt("anna"), file_id)
    provider.end(batch_id)
    output_id = await ended(gpt("anna"), batch_id)
    await gpt("anna").files.content(output_id)
    assert (await gpt("bert").batches.retrieve(batch_id)).id == batch_id, "of the same project"
    assert (await gpt("bert").files.retrieve(file_id)).id == file_id
    asked = len(provider.asked)
    carl = gpt("carl")
    for ask in (carl.batches.retrieve, carl.batches.cancel):
        with refusal(404, match="No such batch"):
            await ask(batch_id)
    for name in (file_id, output_id):
        for ask in (carl.files.retrieve, carl.files.content, carl.files.delete):
            with refusal(404, match="No such file"):
                await ask(name)
    with refusal(400, match="no file") as refused:
        await ordered(carl, file_id)
    assert refused.value.param == "input_file_id"
    assert [one.id async for one in carl.files.list()] == []
    assert [one.id async for one in carl.batches.list()] == []
    assert len(provider.asked) == asked, "the provider was asked for nothing"


async def test_nothing_else_is_asked_for(provider: BatchProvider, gpt: Gpt) -> None:
    for name in ("file-unknown", "a%2Fb", "x" * 300, "..", "a/b", "a/b/content"):
        for path in (f"/files/{name}", f"/batches/{name}"):
            with refusal(404):
                await gpt().get(path, cast_to=object)
    assert provider.asked == []


async def test_what_files_would_lead_to_is_not_served(gpt: Gpt) -> None:
    for path in ("/uploads", "/vector_stores", "/containers", "/fine_tuning/jobs", "/evals"):
        with refusal(404, match="Unknown request URL"):
            await gpt().post(path, cast_to=object, body={})


async def test_lists_have_ones_own_page_by_page(provider: BatchProvider, gpt: Gpt) -> None:
    files = [await uploaded(gpt("anna"), line("a")) for _ in range(5)]
    files.append((await gpt("bert").files.create(file=("c.txt", b"text"), purpose="user_data")).id)
    await uploaded(gpt("carl"), line("a", "other"))
    batches = [await ordered(gpt("anna"), one) for one in files[:5]]
    client = gpt("anna")
    assert [one.id async for one in client.files.list(limit=2)] == files[::-1]
    assert [one.id async for one in client.files.list(limit=2, order="asc", purpose="batch")] == files[:5]
    assert [one.id async for one in client.batches.list(limit=2)] == batches[::-1]
    page = await client.batches.list(limit=2, after=batches[2])
    assert ([one.id for one in page.data], page.has_more) == ([batches[1], batches[0]], False)
    with refusal(404):
        await client.batches.list(after="batch_unknown")
    with refusal(400, match="limit"):
        await client.batches.list(limit=0)
    for objects in (client.batches, client.files):  # before: 500, of Postgres
        with refusal(400, match="after"):
            await objects.list(after="batch_\0")
    del provider.files[files[1]]
    assert [one.id async for one in client.files.list()] == [*files[:1:-1], files[0]], "what is gone is left out"


async def test_a_deleted_file_is_nobodys(provider: BatchProvider, gpt: Gpt) -> None:
    file_id = (await gpt().files.create(file=("c.txt", b"text"), purpose="user_data")).id
    assert (await gpt().files.content(file_id)).content == b"text"
    assert (await gpt().files.delete(file_id)).deleted
    assert file_id not in provider.files
    with refusal(404):
        await gpt().files.retrieve(file_id)


async def test_files_for_what_is_not_metered_are_refused(provider: BatchProvider, gpt: Gpt) -> None:
    purposes: Any = ("fine-tune", "assistants", "evals", "batch_output", "")
    for purpose in purposes:
        with refusal(400, match="purpose: must be one of batch, user_data, vision"):
            await gpt().files.create(file=("c.txt", b"text"), purpose=purpose)
    assert provider.asked == []


WRONG = {
    "line 2, custom_id: must be different": [line("a"), line("a")],
    "line 1, custom_id: must be a string": [line("")],
    "line 1, method: must be POST": [line("a") | {"method": "GET"}],
    "line 1, url: must be one of": [line("a") | {"url": "/v1/images/generations"}],
    "line 1, body: must be an object": [line("a") | {"body": []}],
    "line 1, extra: is no field": [line("a") | {"extra": 1}],
    "line 1, body.messages: must be": [line("a", messages=[])],
    "line 1, body.model: must be a non-empty": [line("a", "")],
    "line 1, The model 'nobody' does not exist": [line("a", "nobody")],
    "line 1, This key may not use the model 'electron'": [line("a")],
    "line 1, The model 'claude' is not served": [line("a", "claude")],
    "line 2, model: must be the same in all": [line("a"), line("b", "other")],
    "line 2, url: must be the same in all": [
        line("a"), line("b") | {"url": "/v1/embeddings", "body": {"model": "electron", "input": "x"}},
    ],
    "line 1, body.stream: is not supported in batches": [line("a", stream=True)],
    "line 1, body.max_tokens: must be an integer": [line("a", max_tokens="many")],
    "The batch has no requests": [],
}  # fmt: skip


async def test_a_wrong_line_is_named(provider: BatchProvider, gpt: Gpt) -> None:
    for why, lines in WRONG.items():
        client = gpt("dora" if "may not use" in why else "anna")
        with refusal(400, 403, 404, match=why):
            await uploaded(client, *lines)
    assert provider.asked == []


async def test_lines_are_read_as_strictly_as_requests(provider: BatchProvider, gpt: Gpt) -> None:
    good = jsonl(line("a"))
    for content, why in (
        (b'{"custom_id":"a","custom_id":"b"}\n', "line 1, The request body has the key 'custom_id' twice"),
        (good + b"{\n", "line 2, The request body is not valid JSON"),
        (b"[]\n", "line 1, The request body must be a JSON object"),
        (good.replace(b'"model"', b'"Model"'), "line 1, The request body has a field that is 'model' but for case"),
        (good.replace(b"100", b"1e999"), "line 1, A number in 'max_tokens' is invalid"),
    ):
        with refusal(400, match=why):
            await gpt().files.create(file=("b.jsonl", content), purpose="batch")
    assert provider.asked == []


async def test_lines_may_end_and_begin_as_editors_write_them(provider: BatchProvider, gpt: Gpt) -> None:
    content = b"\xef\xbb\xbf" + jsonl(line("a")).replace(b"\n", b"\r\n\r\n") + jsonl(line("b")).rstrip()
    file = await gpt().files.create(file=("b.jsonl", content), purpose="batch")
    assert len(provider.contents[file.id].splitlines()) == 2


async def test_a_wrong_order_is_refused(at: Site, gpt: Gpt) -> None:
    asked = {"input_file_id": await uploaded(gpt(), line("a")), "endpoint": CHAT, "completion_window": "24h"}
    changes: tuple[tuple[Document, str], ...] = (
        ({"endpoint": "/v1/embeddings"}, "endpoint: must be that of the requests"),
        ({"completion_window": "1h"}, "completion_window: must be 24h"),
        ({"input_file_id": "file-unknown"}, "input_file_id: no file"),
        ({"input_file_id": 7}, "input_file_id: must be a string"),
        ({"priority": True}, "priority: is no field"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after: seconds must be"),
    )
    for change, why in changes:
        with refusal(400, match=why):
            await gpt().post("/batches", cast_to=object, body=asked | change)
    assert at.budget.held == {}


async def test_what_providers_take_beside_it_goes_up(provider: BatchProvider, at: Site, gpt: Gpt) -> None:
    day = 86_400
    file = await gpt().files.create(
        file=("b.jsonl", jsonl(line("a"))), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
    )
    batch = await gpt().batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"for": "us"},
        output_expires_after={"anchor": "created_at", "seconds": day},
    )  # fmt: skip
    assert batch.metadata == {"for": "us"}
    (own,) = at.batches.page("openai.batches", KEYS["anna"], PageAsked(9))[0]
    assert (own.batch_id, own.input_file) == (batch.id, file.id)


async def test_an_answer_that_says_that_it_failed_is_billed_as_that_of_a_request(at: Site, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"), line("b"))

    def failed(one: Document) -> Document:
        nothing = {"choices": [], "usage": None} if one["custom_id"] == "b" else {}
        return chat_answer("electron") | {"error": {"code": "server_error", "message": "It failed."}} | nothing

    lines = await booked(at, gpt(), batch_id, answered=failed)
    assert [(one.details["situation"], one.charge_nusd) for one in lines] == [
        ("failed_reported_empty", 9_500), ("failed_empty", 0),
    ]  # fmt: skip


async def test_a_file_that_is_no_input_makes_no_batch(gpt: Gpt) -> None:
    file = await gpt().files.create(file=("b.jsonl", jsonl(line("a"))), purpose="user_data")
    with refusal(400, match="input_file_id: must be a file with the purpose batch"):
        await ordered(gpt(), file.id)


async def test_files_that_lines_name_are_ones_own(gpt: Gpt) -> None:
    file = await gpt("anna").files.create(file=("c.pdf", b"text"), purpose="user_data")
    content = [{"type": "file", "file": {"file_id": file.id}}]
    named = line("a", "other", messages=[{"role": "user", "content": content}])
    assert await uploaded(gpt("anna"), named)
    with refusal(400, match="file_id: no file"):
        await uploaded(gpt("carl"), named)


async def test_a_batch_beyond_the_budget_is_not_made(provider: BatchProvider, at: Site, gpt: Gpt) -> None:
    file_id = await uploaded(gpt(), line("a"), line("b"))
    await ordered(gpt(), file_id)
    at.budget.nusd_max = 2 * at.budget.total - 1
    with refusal(402):
        await ordered(gpt(), file_id)
    assert provider.count("POST", "/batches") == 1
    assert len(at.budget.held) == 1


async def test_what_has_no_price_is_not_admitted_with_a_budget(at: Site, gpt: Gpt) -> None:
    file_id = await uploaded(gpt(), line("a"))
    at.price = None
    with refusal(403, match="has no price"):
        await ordered(gpt(), file_id)


async def test_a_refused_batch_ends_at_once(provider: BatchProvider, at: Site, gpt: Gpt) -> None:
    file_id = await uploaded(gpt(), line("a"))
    provider.when_one_is_made(answer=web.json_response({"error": {"message": "Too many batches."}}, status=429))
    with refusal(429, match="Too many batches"):
        await ordered(gpt(), file_id)
    assert at.budget.held == {}
    (own,) = own_entries(at)
    assert (own.outcome, own.charge_nusd) == ("refused_upstream", 0)
    assert at.batches.of_exchange(own.exchange_id) is None


async def test_results_are_settled_without_a_client(provider: BatchProvider, at: Site, proxy: Proxy, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"), line("b"))
    assert await at.look(proxy, 60.0) == 1, "it has not ended"
    assert await proxy.watcher.look() == 0, "it is asked for later"
    provider.end(batch_id)
    assert await at.look(proxy, 600.0) == 1
    assert len(lines_of(at)) == 2
    assert await at.look(proxy, 6_000.0) == 0, "it is settled"
    await gpt().files.content(await ended(gpt(), batch_id))
    assert len(lines_of(at)) == 2


async def test_nothing_is_told_of_results_before_the_end(provider: BatchProvider, at: Site, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    provider.end(batch_id)
    output_id = provider.batches[batch_id]["output_file_id"]
    for ask in (gpt().files.content, gpt().files.delete, gpt().files.retrieve):
        with refusal(404):
            await ask(output_id)
    assert lines_of(at) == []


async def test_results_are_not_deleted_unread(provider: BatchProvider, at: Site, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    provider.end(batch_id)
    await gpt().files.delete(await ended(gpt(), batch_id))
    assert len(lines_of(at)) == 1


async def test_results_wait_for_the_ledger(provider: BatchProvider, at: Site, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    provider.end(batch_id)
    at.fail("settle")
    output_id = await ended(gpt(), batch_id)
    for _ in range(2):
        with refusal(500, 502, 503, match="cannot be looked up right now"):
            await gpt().files.content(output_id)
    at.before_call = lambda _: None
    assert (await gpt().files.content(output_id)).content == provider.contents[output_id]
    assert len(lines_of(at)) == 1


async def test_many_downloads_at_once_from_two_proxies_book_each_line_once(at: Site, gpt: Gpt) -> None:
    other = await at.start("there")
    batch_id = await made(gpt(), *(line(str(number)) for number in range(30)))
    at.provider.end(batch_id)
    clients = [gpt("anna"), gpt("bert"), gpt("anna", other.url), gpt("bert", other.url)]
    output_id = await ended(clients[0], batch_id)
    answers = await asyncio.gather(*(one.files.content(output_id) for one in clients * 3))
    assert {one.content for one in answers} == {at.provider.contents[output_id]}
    assert len(lines_of(at)) == 30
    assert len(own_entries(at)) == 1


@pytest.mark.parametrize("status", ["expired", "cancelled"])
async def test_of_a_batch_that_was_cut_off_what_was_generated_is_billed(at: Site, gpt: Gpt, status: str) -> None:
    batch_id = await made(gpt(), line("a"), line("b"))
    assert (await gpt().batches.cancel(batch_id)).status == "cancelling"
    of_a = {"a": chat_answer("m")}
    lines = await booked(at, gpt(), batch_id, status=status, answered=lambda one: of_a.get(one["custom_id"]))
    assert [one.details["custom_id"] for one in lines] == ["a"]
    assert own_entries(at)[0].details["batch"] == {"lines": 2, "succeeded": 1, "failed": 1, "status": status}


async def test_a_batch_that_failed_costs_nothing(provider: BatchProvider, at: Site, proxy: Proxy, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    provider.batches[batch_id] |= {"status": "failed", "failed_at": 1_790_000_001}
    await at.look(proxy, 60.0)
    (own,) = at.entries()
    assert (own.outcome, own.charge_nusd, own.details["batch"]["status"]) == ("refused_upstream", 0, "failed")
    assert stored(at, batch_id).state is BatchState.SETTLED


async def test_what_a_provider_has_generated_is_waited_for(at: Site, proxy: Proxy, gpt: Gpt) -> None:
    """An ended batch whose file is not there yet has not ended for us."""
    batch_id = await made(gpt(), line("a"))
    at.provider.end(batch_id)
    output_id, at.provider.batches[batch_id]["output_file_id"] = at.provider.batches[batch_id]["output_file_id"], None
    await at.look(proxy, 60.0)
    assert at.entries() == []
    at.provider.batches[batch_id]["output_file_id"] = output_id
    await at.look(proxy, 600.0)
    assert len(lines_of(at)) == 1


async def test_a_line_that_cannot_be_read_is_estimated_and_not_free(at: Site, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"), line("b"), line("c"))
    at.provider.end(
        batch_id, answered=lambda one: chat_answer("m") | ({"usage": None} if one["custom_id"] == "b" else {})
    )
    output_id = at.provider.batches[batch_id]["output_file_id"]
    first, second, third = at.provider.contents[output_id].splitlines()
    at.provider.contents[output_id] = b"\n".join((first, second, third[: len(third) // 2]))
    await gpt().files.content(await ended(gpt(), batch_id))
    found = {one.details["custom_id"]: one for one in at.entries() if "custom_id" in one.details}
    assert {name: one.usage_source for name, one in found.items()} == {
        "a": "reported", "b": "estimated", None: "estimated",
    }  # fmt: skip
    assert all((one.charge_nusd or 0) > 0 for one in found.values())


async def test_prices_are_those_of_admission(at: Site, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    at.price = None
    assert [one.charge_nusd for one in await booked(at, gpt(), batch_id)] == [LINE_NUSD]


async def test_free_lines_are_booked_and_not_billed(at: Site, gpt: Gpt) -> None:
    at.price = None
    moderation = line("a") | {"url": "/v1/moderations", "body": {"model": "electron", "input": "x"}}
    file_id = await uploaded(gpt(), moderation)
    batch = await gpt().batches.create(input_file_id=file_id, endpoint="/v1/moderations", completion_window="24h")
    answer = {"id": "modr-1", "model": "electron", "results": []}
    (entry,) = await booked(at, gpt(), batch.id, answered=lambda _: answer)
    assert (entry.charge_nusd, entry.price_version, entry.prompt_tokens) == (0, "free", 0)


async def test_embeddings_are_billed_by_their_prompts(at: Site, gpt: Gpt) -> None:
    wanted = line("a") | {"url": "/v1/embeddings", "body": {"model": "electron", "input": ["x", "y"]}}
    batch = await gpt().batches.create(
        input_file_id=await uploaded(gpt(), wanted), endpoint="/v1/embeddings", completion_window="24h"
    )
    usage = {"prompt_tokens": USAGE["prompt_tokens"], "total_tokens": 11}
    answer = {"object": "list", "data": [], "model": "electron", "usage": usage}
    lines = await booked(at, gpt(), batch.id, answered=lambda _: answer)
    assert [one.charge_nusd for one in lines] == [11_000]


async def test_a_tier_without_a_price_is_charged_in_full_and_named(at: Site, gpt: Gpt) -> None:
    assert at.price is not None
    at.price = structs.replace(at.price, multipliers={})
    (entry,) = await booked(at, gpt(), await made(gpt(), line("a")))
    assert (entry.charge_nusd, entry.details["unpriced_units"]) == (2 * LINE_NUSD, ["tier:batch"])


@pytest.mark.parametrize("refuted", Refuted)
async def test_a_count_that_a_line_refutes_is_named(refuted: Refuted, at: Site, gpt: Gpt) -> None:
    client = gpt(url=(await at.start("there", usage=UsageSettings(refuted=refuted))).url)
    none = {"prompt_tokens": 11, "completion_tokens": 0, "total_tokens": 11}
    answer = chat_answer("electron", "Much. " * 40) | {"usage": none}
    (one,) = await booked(at, client, await made(client, line("a")), answered=lambda _: answer)
    assert one.details["refuted"]["completion_tokens"]["reported"] == 0
    is_estimated = refuted is Refuted.ESTIMATE
    assert one.usage_source == ("estimated" if is_estimated else "reported")
    assert (one.completion_tokens == 0) is not is_estimated
