"""Answers requests for lists of models, and for one model.

Invariants: each answer needs a valid key; none opens an exchange. A refusal has the format of the client's SDK.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from urllib.parse import parse_qs

import msgspec
from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.gateway.authentication import authenticated
from proxy.gateway.models.catalogue import Catalogue
from proxy.gateway.models.formats import GEMINI, OLLAMA, OLLAMA_VERSION, OPENAI, Document, Format, format_for
from proxy.gateway.models.listed_model import ListedModel
from proxy.gateway.models.pages import Query
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.json_body import parse_object
from proxy.http.request_body import read_body
from proxy.http.server import Routes, Serve
from proxy.keys.keyring import Keyring
from proxy.settings.models import MODEL_NAME

# Path → the format there; None: the client's. Each model has a path below each of them.
PATHS: dict[str, Format | None] = {
    "/v1/models": None,
    "/v1beta/models": GEMINI,
    "/openai/v1/models": OPENAI,
}
# A name and some flags.
SHOW_BYTES_MAX = 16 * 1024
# SDKs send one or two parameters.
QUERY_FIELDS_MAX = 20

Answer = Callable[[web.BaseRequest, ApiKey, Format], Awaitable[Document]]


class ModelsHandler:
    """Serves models to clients."""

    def __init__(self, keys: Keyring, catalogue: Catalogue) -> None:
        self._keys = keys
        self._catalogue = catalogue

    async def names(self, key: ApiKey) -> Iterable[str]:
        """The names in the list of models of this key. May wait for providers' lists."""
        return await self._catalogue.models(key)

    def add_to(self, routes: Routes) -> None:
        """Add the routes, after those of exchanges: some paths have a common beginning."""
        for path, known in PATHS.items():
            routes.local("GET", path, self._serving(self._listed, known))
            routes.named("GET", f"{path}/", "", partial(self._serving_one, known))
        routes.local("GET", "/api/tags", self._serving(self._listed, OLLAMA))
        routes.local("POST", "/api/show", self._serving(self._shown, OLLAMA))
        routes.local("GET", "/api/version", self._serving(_version, OLLAMA))

    def _serving(self, answer: Answer, known: Format | None) -> Serve:
        """The handler of a route. `known`: its format; None: the client's."""

        async def serve(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
            spoken = known or format_for(request.headers)
            try:
                key = await authenticated(self._keys, request)
                document = await answer(request, key, spoken)
            except ApiError as refusal:
                refusal.shape = spoken.errors
                raise
            return web.Response(body=msgspec.json.encode(document), content_type=JSON_TYPE)

        return serve

    def _serving_one(self, known: Format | None, name: str) -> Serve:
        async def one(_request: web.BaseRequest, key: ApiKey, spoken: Format) -> Document:
            return spoken.one(await self._found(key, spoken, name))

        return self._serving(one, known)

    async def _listed(self, request: web.BaseRequest, key: ApiKey, spoken: Format) -> Document:
        query = _query(request)
        models = await self._catalogue.models(key)
        return spoken.listed([one for one in models.values() if spoken.shows(one)], query)

    async def _shown(self, request: web.BaseRequest, key: ApiKey, spoken: Format) -> Document:
        """Answer Ollama's request for one model: its name is in the body, without the tag `latest`."""
        try:
            document = parse_object(await read_body(request, bytes_max=SHOW_BYTES_MAX))
        except (web.RequestPayloadError, ConnectionError):
            raise errors.bad_request("The request body is incomplete.", code="incomplete_body") from None
        name = document.get("model") or document.get("name")
        if not isinstance(name, str) or not MODEL_NAME.fullmatch(name) or name.endswith("*"):
            raise errors.bad_request("model: must be the name of a model", param="model", code="invalid_value")
        return spoken.one(await self._found(key, spoken, *([name] if ":" in name else [name, f"{name}:latest"])))

    async def _found(self, key: ApiKey, spoken: Format, *names: str) -> ListedModel:
        """The first model with one of `names`. Raises ApiError 404, also if the key may not use the model."""
        for name in names:
            model = await self._catalogue.model(key, name)
            if model is not None and spoken.shows(model):
                return model
        raise errors.unknown_model(names[0])


async def _version(_request: web.BaseRequest, _key: ApiKey, _spoken: Format) -> Document:
    return {"version": OLLAMA_VERSION}


def _query(request: web.BaseRequest) -> Query:
    try:
        return parse_qs(request.raw_path.partition("?")[2], keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        message = f"The query has more than {QUERY_FIELDS_MAX} parameters."
        raise errors.bad_request(message, code="invalid_query") from None
