"""Several credentials: what one of them made is asked for with it."""

from __future__ import annotations

from time import monotonic

import pytest

from proxy.foundation.secret import Secret
from proxy.settings import CredentialSettings
from tests.gateway.batches.asking import ended, line, ordered, uploaded
from tests.gateway.batches.site import Site
from tests.support.batch_provider import BatchProvider
from tests.support.clients import Clients

pytestmark = pytest.mark.io


async def test_a_batch_stays_with_its_credential(provider: BatchProvider, at: Site, clients: Clients) -> None:
    both = tuple(CredentialSettings(name=name, api_key=Secret(f"sk-canary-of-{name}")) for name in ("one", "two"))
    proxy = await at.start(api_key=None, credentials=both)
    client = clients.gpt(proxy.url)
    file_id = await uploaded(client, line("a"))
    (made_with,) = {key for _, _, key in provider.asked}
    pool = proxy.service._settler._providers["openai"].pool
    assert pool is not None
    used = next(one for one in pool.credentials if made_with == f"Bearer {one.secret}")
    used.rests(monotonic(), 60.0)  # others are free: what is made stays where it is
    batch_id = await ordered(client, file_id)
    provider.end(batch_id)
    output_id = await ended(client, batch_id)
    await client.files.content(output_id)
    assert [one.id async for one in client.files.list(purpose="batch")] == [file_id]
    assert {key for _, _, key in provider.asked} == {made_with}
    await client.files.create(file=("b.txt", b"text"), purpose="user_data")
    assert len({key for _, _, key in provider.asked}) == 2
