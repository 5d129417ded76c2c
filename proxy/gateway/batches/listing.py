"""Lists of a key's objects.

Invariant: a list is made from the stored owners of objects; each object on the page is requested by its id. A
provider's list, which has the objects of all keys, is neither shown nor searched. A page may have objects of several
providers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web

from proxy.gateway.batches.access import Access, Asked, json_answer
from proxy.gateway.batches.asking import after_of, asked, object_in, request_to
from proxy.gateway.upstream.client import UpstreamClient
from proxy.http import errors
from proxy.http.errors import ApiError

# Requests to a provider at once, for one list.
AT_ONCE = 8

Seen = Callable[[str, bytes], Awaitable[bytes]]
"""called with the id and the object before it is shown. Raises ApiError"""


async def _as_it_is(_object_id: str, body: bytes) -> bytes:
    return body


async def listed(
    access: Access,
    client: UpstreamClient,
    made_for: Asked,
    objects: Sequence[tuple[str, str, str | None]],
    *,
    more: bool,
    seen: Seen = _as_it_is,
) -> web.StreamResponse:
    """`objects`: ids, with the provider and the credential of each. Objects that a provider does not have any more
    are left out. Raises ApiError."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(object_id: str, provider_name: str, credential: str | None) -> msgspec.Raw | None:
        async with slots:
            provider = access.provider(provider_name)
            after = after_of(object_id)
            request = request_to(provider, made_for.api, "GET", after, credential=credential, client=made_for.request)
            answer = await asked(client, provider, request)
            if answer.status == 404:
                answer.close()
                return None
            if answer.status != 200:
                answer.close()
                raise errors.upstream_failed()
            return msgspec.Raw(await seen(object_id, await object_in(answer, provider)))

    refusal: BaseException | None = None
    tasks: list[asyncio.Task[msgspec.Raw | None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(one(*place)) for place in objects]
    except* ApiError as refusals:
        refusal = refusals.exceptions[0]
    if refusal is not None:
        raise refusal
    data = [raw for task in tasks if (raw := task.result()) is not None]
    return json_answer(made_for.api.page(data, [object_id for object_id, _, _ in objects], more))
