"""Anthropic's batches and files with its own SDK."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.batches.asking import LINE_NUSD, lines_of, made_by, own_entries, request
from tests.gateway.batches.site import Proxy, Site
from tests.support.batch_provider import SECRET, BatchProvider, Document, message_answer
from tests.support.clients import Claude, Gpt, refusal

pytestmark = pytest.mark.io

MESSAGE_NUSD = 39_000
"""11 prompt tokens at 2 USD per million, 7 generated ones at 8, at half the price"""


async def names(client: Any, batch_id: str) -> list[tuple[str, str]]:
    """What the SDK reads of results."""
    return [(one.custom_id, one.result.type) async for one in await client.messages.batches.results(batch_id)]


async def test_a_batch_from_its_requests_to_its_results(provider: BatchProvider, at: Site, claude: Claude) -> None:
    client = claude()
    batch_id = await made_by(client, request("a"), request("b"), request("c"))
    held = at.budget.total
    assert held >= 3 * MESSAGE_NUSD
    assert {key for _, _, key in provider.asked} == {SECRET}

    def answered(one: Document) -> Document | None:
        return None if one["custom_id"] == "b" else message_answer(one["params"]["model"])

    provider.end(batch_id, answered=answered)
    ended = await client.messages.batches.retrieve(batch_id)
    assert (ended.processing_status, ended.results_url) == ("ended", f"/v1/messages/batches/{batch_id}/results")
    for _ in range(3):
        results = [("a", "succeeded"), ("b", "expired"), ("c", "succeeded")]
        assert await names(client, batch_id) == results, "the SDK's own way to them leads here"
    lines, (own,) = lines_of(at), own_entries(at)
    assert [(one.details["custom_id"], one.charge_nusd) for one in lines] == [("a", MESSAGE_NUSD), ("c", MESSAGE_NUSD)]
    assert {(one.endpoint, one.model, one.duration_ms) for one in lines} == {("/v1/messages", "claude", 60_000)}
    assert own.details["batch"] == {"lines": 3, "succeeded": 2, "failed": 1, "status": "ended"}
    assert len(at.entries()) == 3


async def test_models_may_be_mixed(provider: BatchProvider, at: Site, claude: Claude) -> None:
    batch_id = await made_by(
        claude(), request("a", "haiku"), request("b"), request("c"), request("d", "haiku"), request("e")
    )
    assert [one["params"]["model"] for one in provider.requests[batch_id]] == [
        "haiku-2026", "claude", "claude", "haiku-2026", "claude",
    ]  # fmt: skip
    provider.end(batch_id)
    await names(claude(), batch_id)
    assert [(one.model, one.upstream_model) for one in lines_of(at)] == [
        ("haiku", "haiku-2026"), ("claude", "claude"), ("claude", "claude"), ("haiku", "haiku-2026"),
        ("claude", "claude"),
    ]  # fmt: skip


async def test_other_keys_have_nothing_of_it(provider: BatchProvider, at: Site, claude: Claude) -> None:
    batch_id = await made_by(claude("anna"), request("a"))
    provider.end(batch_id)
    asked = len(provider.asked)
    for ask in ("retrieve", "results", "cancel", "delete"):
        with refusal(404, match="No such batch"):
            await getattr(claude("carl").messages.batches, ask)(batch_id)
    assert [one.id async for one in claude("carl").messages.batches.list()] == []
    assert len(provider.asked) == asked
    assert [one.id async for one in claude("bert").messages.batches.list()] == [batch_id]
    assert at.entries() == []


async def test_the_families_have_nothing_of_each_other(provider: BatchProvider, claude: Claude, gpt: Gpt) -> None:
    batch_id = await made_by(claude(), request("a"))
    with pytest.raises(Exception, match="No such batch"):
        await gpt().batches.retrieve(batch_id)
    file = await gpt().files.create(file=("c.txt", b"text"), purpose="user_data")
    with refusal(404):
        await claude().beta.files.retrieve_metadata(file.id)


async def test_results_are_not_told_before_the_end(provider: BatchProvider, at: Site, claude: Claude) -> None:
    batch_id = await made_by(claude(), request("a"))
    with refusal(400, match="has not ended"):
        await claude().get(f"/v1/messages/batches/{batch_id}/results", cast_to=object)
    assert provider.count("GET", "/results") == 0
    assert (await claude().messages.batches.cancel(batch_id)).processing_status == "canceling"
    assert at.entries() == []


async def test_a_batch_is_not_deleted_before_it_is_settled(provider: BatchProvider, at: Site, claude: Claude) -> None:
    batch_id = await made_by(claude(), request("a"))
    with refusal(400, match="has not ended"):
        await claude().messages.batches.delete(batch_id)
    provider.end(batch_id)
    await claude().messages.batches.delete(batch_id)
    assert len(lines_of(at)) == 1
    with refusal(404):
        await claude().messages.batches.retrieve(batch_id)


async def test_pages_go_both_ways(provider: BatchProvider, claude: Claude) -> None:
    ids = [await made_by(claude(), request("a")) for _ in range(5)]
    batches = claude().messages.batches
    assert [one.id async for one in batches.list(limit=2)] == ids[::-1]
    page = await batches.list(limit=2, before_id=ids[0])
    assert ([one.id for one in page.data], page.has_more) == ([ids[2], ids[1]], True)
    assert [one.id async for one in batches.list(limit=2, before_id=ids[0])] == [ids[2], ids[1], ids[4], ids[3]]


WRONG = {
    "requests: must be an array": {"requests": {}},
    "requests: must be an array, and the only": {"requests": [], "more": 1},
    r"requests\[0\]: must be an object": {"requests": [1]},
    r"requests\[1\]: must be an object": {"requests": [request("a"), "{}"]},
    r"requests\[0\]: must be": {"requests": [[request("a")]]},
    r"requests\[0\]\.custom_id: is missing": {"requests": [{"params": {}}]},
    r"requests\[0\]\.extra: is no field": {"requests": [request("a") | {"extra": 1}]},
    r"requests\[1\], custom_id: must be different": {"requests": [request("a"), request("a")]},
    r"requests\[0\], params\.messages: must be": {"requests": [request("a", messages=[])]},
    r"requests\[0\], params\.stream: is not supported": {"requests": [request("a", stream=True)]},
    r"requests\[0\], The model 'nobody' does not exist": {"requests": [request("a", "nobody")]},
    r"requests\[0\], The model 'electron' is not served": {"requests": [request("a", "electron")]},
    "The batch has no requests": {"requests": []},
}


async def test_a_wrong_request_is_named(provider: BatchProvider, at: Site, claude: Claude) -> None:
    for why, body in WRONG.items():
        with refusal(400, 403, 404, match=why) as refused:
            await claude().post("/v1/messages/batches", cast_to=object, body=body)
        assert refused.value.body["type"] == "error"
    assert provider.asked == []
    assert at.budget.held == {}


async def test_a_batch_beyond_the_budget_is_not_made(provider: BatchProvider, at: Site, claude: Claude) -> None:
    at.budget.nusd_max = MESSAGE_NUSD
    with refusal(402):
        await made_by(claude(), *(request(str(number)) for number in range(3)))
    assert provider.asked == []


async def test_files(provider: BatchProvider, at: Site, claude: Claude) -> None:
    files = claude("anna").beta.files
    made = [await files.upload(file=(f"{number}.txt", b"text")) for number in range(3)]
    assert [one.id async for one in files.list(limit=2)] == [one.id for one in made[::-1]]
    assert (await files.retrieve_metadata(made[0].id)).filename == "0.txt"
    other = claude("carl")
    for ask in (other.beta.files.retrieve_metadata, other.beta.files.download, other.beta.files.delete):
        with refusal(404, match="No such file"):
            await ask(made[0].id)
    source = {"type": "file", "file_id": made[0].id}
    named = request("a", messages=[{"role": "user", "content": [{"type": "document", "source": source}]}])
    assert await made_by(claude("bert"), named)
    with refusal(400, match="file_id: no file"):
        await made_by(other, named)
    with refusal(400, match="ids: is not supported"):
        await files.list(ids=[made[0].id])
    await files.delete(made[0].id)
    assert made[0].id not in provider.files


async def test_lines_of_openai_are_not_taken_for_messages(at: Site, proxy: Proxy, claude: Claude) -> None:
    assert LINE_NUSD != MESSAGE_NUSD
    with refusal(400, match="purpose: is no field"):
        await claude().post(
            "/v1/files", cast_to=object, files=[("file", ("a", b"x"))], body={"purpose": "batch"},
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )  # fmt: skip
