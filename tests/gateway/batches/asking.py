"""What tests ask for: lines, uploads, batches."""

from __future__ import annotations

import json
from typing import Any

from proxy.billing.batch import StoredBatch
from proxy.billing.entries import LedgerEntry
from tests.gateway.batches.site import Site
from tests.support.batch_provider import Document
from tests.support.sdks import anthropic, openai

CHAT = "/v1/chat/completions"
LINE_NUSD = 37_500
"""8 prompt tokens at 2 USD per million, 3 cached ones at 1, 7 generated ones at 8, at half the price"""


def line(name: str, model: str = "electron", **body: Any) -> Document:
    """A line of OpenAI's."""
    messages = [{"role": "user", "content": "How much is it?"}]
    return {
        "custom_id": name, "method": "POST", "url": CHAT,
        "body": {"model": model, "messages": messages, "max_tokens": 100, **body},
    }  # fmt: skip


def request(name: str, model: str = "claude", **params: Any) -> Document:
    """The same of Anthropic's."""
    messages = [{"role": "user", "content": "How much is it?"}]
    return {"custom_id": name, "params": {"model": model, "messages": messages, "max_tokens": 100, **params}}


def jsonl(*lines: Document) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in lines).encode()


async def uploaded(client: openai.AsyncOpenAI, *lines: Document) -> str:
    """The id of a file with these lines."""
    return (await client.files.create(file=("b.jsonl", jsonl(*lines)), purpose="batch")).id


async def ordered(client: openai.AsyncOpenAI, file_id: str) -> str:
    """The id of a batch of a file."""
    return (await client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")).id


async def made(client: openai.AsyncOpenAI, *lines: Document) -> str:
    """The id of a batch of these lines."""
    return await ordered(client, await uploaded(client, *lines))


async def made_by(client: anthropic.AsyncAnthropic, *requests: Document) -> str:
    """The same of Anthropic's."""
    asked: Any = requests
    return (await client.messages.batches.create(requests=asked)).id


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> str:
    """The id of the file with the results."""
    output = (await client.batches.retrieve(batch_id)).output_file_id
    assert output is not None
    return output


def stored(at: Site, batch_id: str) -> StoredBatch:
    """What the database has of a batch."""
    found = at.batches.find(batch_id)
    assert found is not None
    return found


def lines_of(at: Site) -> list[LedgerEntry]:
    """The entries of lines, by their names."""
    return sorted([one for one in at.entries() if "custom_id" in one.details], key=lambda one: one.details["custom_id"])


def own_entries(at: Site) -> list[LedgerEntry]:
    """The entries of batches themselves."""
    return [one for one in at.entries() if "batch" in one.details]
