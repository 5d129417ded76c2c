"""Answers requests of a client for data of its own key.

Invariants: each request needs a valid key, and its answer has data of this key only: an exchange of another key is
answered like one that does not exist, and so is any exchange for a narrowed key that may not use what its parent has
stored. No request opens an exchange. A refusal has the format of the client's SDK. `KeyAllowance` limits the answers of
a key.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qs

import msgspec
from aiohttp import web
from msgspec import UNSET

from proxy.billing.keys import ApiKey
from proxy.gateway.authentication import authenticated
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.key_info import openrouter, own_format
from proxy.gateway.key_info.reading import KeyBudgets, KeyReads
from proxy.gateway.models.formats import format_for
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.server import Routes, Serve
from proxy.keys.keyring import Keyring

# What ids of exchanges and of providers' responses consist of.
_ID = re.compile(r"[!-~]{1,256}", re.ASCII)
# Longer queries than the one parameter are a client's mistake.
QUERY_FIELDS_MAX = 20

Document = dict[str, object]
Answer = Callable[[web.BaseRequest, ApiKey], Awaitable[Document]]

_ENCODER = msgspec.json.Encoder(decimal_format="number")


class KeyInfoHandler:
    """Serves the routes on which a key reads its own limits, spend and charges."""

    def __init__(self, keys: Keyring, reads: KeyReads, dimensions: RequestDimensions) -> None:
        self._keys = keys
        self._reads = reads
        self._dimensions = dimensions

    def add_to(self, routes: Routes) -> None:
        """Add the routes. Clients whose base URL ends with `/v1` ask for OpenRouter's routes below that."""
        routes.local("GET", "/v1/me", self._serving(self._me))
        for base in ("/api/v1", "/v1"):
            routes.local("GET", f"{base}/key", self._serving(self._key))
            routes.local("GET", f"{base}/auth/key", self._serving(self._key))
            routes.local("GET", f"{base}/credits", self._serving(self._credits))
            routes.local("GET", f"{base}/generation", self._serving(self._generation))

    def _serving(self, answer: Answer) -> Serve:
        async def serve(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
            try:
                document = await self._answered(request, answer)
            except ApiError as refusal:
                refusal.shape = format_for(request.headers).errors
                raise
            headers = {"Cache-Control": "no-store"}
            return web.Response(body=_ENCODER.encode(document), content_type=JSON_TYPE, headers=headers)

        return serve

    async def _answered(self, request: web.BaseRequest, answer: Answer) -> Document:
        """Raises ApiError."""
        key = await authenticated(self._keys, request)
        self._reads.allowance.count(key.key_id)
        try:
            return await answer(request, key)
        except OSError:
            message = "Spend and limits cannot be read right now. Please try again later."
            raise errors.overloaded(message, code="key_info_unavailable") from None

    async def _me(self, request: web.BaseRequest, key: ApiKey) -> Document:
        return own_format.me(key, self._keys.access(key), await self._budgets(request, key, own_format.SINCE))

    async def _key(self, request: web.BaseRequest, key: ApiKey) -> Document:
        return openrouter.key(key, await self._budgets(request, key, openrouter.since(time.time())))

    async def _credits(self, request: web.BaseRequest, key: ApiKey) -> Document:
        return openrouter.credit(await self._budgets(request, key, (0.0,)))

    async def _budgets(self, request: web.BaseRequest, key: ApiKey, since: Sequence[float]) -> KeyBudgets:
        """Read the budgets of the key, and of the dimensions in the headers. Raises ApiError, OSError."""
        access = self._keys.access(key)
        sent = self._dimensions.sent(key, request.headers, "", {})
        known = await self._dimensions.ids(key, sent) if sent else UNSET
        try:
            scopes = self._dimensions.levels(key, access, "", known)
        except ApiError:  # a dimension that requests must have
            scopes = access.scopes
        return await self._reads.budgets(key, access, scopes, since)

    async def _generation(self, request: web.BaseRequest, key: ApiKey) -> Document:
        named = _id_in(request)
        is_known = key.uses_stored and _ID.fullmatch(named) is not None
        found = await self._reads.exchange(key, named) if is_known else None
        if found is None:
            raise ApiError(404, "No such generation of this key.", param="id", code="generation_not_found")
        return openrouter.generation(found)


def _id_in(request: web.BaseRequest) -> str:
    """The parameter `id`. Raises ApiError."""
    try:
        query = parse_qs(request.raw_path.partition("?")[2], max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        message = f"The query has more than {QUERY_FIELDS_MAX} parameters."
        raise errors.bad_request(message, code="invalid_query") from None
    if len(query.get("id", ())) != 1:
        raise errors.bad_request("id: must be given once, in the query", param="id", code="invalid_value")
    return query["id"][0]
