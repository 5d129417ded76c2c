"""Serves files: uploads, lists, contents.

Invariants: a file with lines of a batch is checked before it is uploaded. The results of a batch are relayed or deleted
only when the ledger has its lines. Storage is not billed; the number of files of a key is limited.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from proxy.billing.batch import BatchInput, StoredBatch, StoredFile
from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope
from proxy.foundation.slices import in_slices
from proxy.gateway.batches.access import Access, Asked, Handle, answer_of, body_of, page_asked, passed_on
from proxy.gateway.batches.asking import asked, is_id, object_in, posting_to
from proxy.gateway.batches.lines_in import LineChecker, checked_file
from proxy.gateway.batches.listing import listed
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.passing import passed
from proxy.gateway.ports import RequestLimits
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models
from proxy.http import errors
from proxy.http.request_body import CODECS
from proxy.metering.dialect import RequestBody
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.request import Upload
from proxy.metering.stored_objects import BATCH_APIS
from proxy.metering.stored_objects.api import (
    CONTENT,
    CREATE,
    DELETE,
    LIST,
    RETRIEVE,
    BatchApi,
    FileApi,
    ObjectApi,
    Operation,
)

# Files of a key, without results. With 64 MiB each they are a quarter of OpenAI's limit for an organization.
FILES_MAX = 10_000
# The purpose of files with lines of a batch.
BATCH = "batch"

Settled = Callable[[StoredBatch], Awaitable[None]]
"""returns when the ledger has the lines of a batch. Raises ApiError"""


class _Made(msgspec.Struct):
    id: str


_made = msgspec.json.Decoder(_Made).decode


class FilesHandler:
    """Serves requests about files."""

    def __init__(
        self,
        access: Access,
        *,
        providers: Mapping[str, Provider],
        client: UpstreamClient,
        models: Models,
        estimator: Estimator,
        limits: RequestLimits,
        uploads: Uploads,
        scopes: Callable[[ApiKey], Sequence[Scope]],
        settled: Settled,
    ) -> None:
        """`scopes`: the levels that limit a key."""
        self._access = access
        self._providers = providers
        self._client = client
        self._models = models
        self._estimator = estimator
        self._limits = limits
        self._uploads = uploads
        self._scopes = scopes
        self._settled = settled

    def handlers(self) -> Mapping[Operation, Handle]:
        """Operation → its handler."""
        return {
            CREATE: self._create,
            LIST: self._list,
            **{operation: partial(self._passed, operation) for operation in (CONTENT, RETRIEVE, DELETE)},
        }

    async def _create(self, made_for: Asked) -> web.StreamResponse:
        api, key = made_for.api, made_for.key
        assert isinstance(api, FileApi)
        if await self._access.stored(self._access.ports.files.count, key.key_id) >= FILES_MAX:
            raise errors.bad_request(f"This key has {FILES_MAX} files: delete some.", code="too_many_files")
        upload = self._uploads.begin(key.key_id, self._scopes(key))
        try:
            request = made_for.request
            body = await body_of(request, self._limits.body_bytes_max, upload.grew)
            upload.arrived()
            content_type = request.headers.get("Content-Type", "")
            document = await in_slices(len(body), CODECS[RequestBody.MULTIPART].parse, body, content_type)
            del body  # each of them is as large as the file
            purpose = _purpose(api, document)
            read, provider = await self._checked(made_for, document, purpose)
            content_type, pieces = CODECS[RequestBody.MULTIPART].write(document)
            document.clear()
            credential = provider.credential_now()
            wire = posting_to(provider, api, content_type, pieces, credential=credential, client=request)
            del pieces
            file = StoredFile(
                api=api.name, provider=provider.settings.name, credential=credential, key_id=key.key_id,
                project_id=key.project_id, created_at=time.time(), file_id="", purpose=purpose, input=read,
            )  # fmt: skip
            return await self._sent(made_for, provider, wire, file)
        finally:
            upload.free()

    async def _checked(
        self, made_for: Asked, document: dict[str, Any], purpose: str
    ) -> tuple[BatchInput | None, Provider]:
        """Check an upload: its lines are replaced by those for the provider. Returns the facts of the lines, and the
        provider."""
        if purpose != BATCH:
            return None, self._first(made_for.api)
        api = _batches_of(made_for.api)
        default = self._limits.reserve.completion_tokens
        checker = LineChecker(api, made_for.key, self._models, self._estimator, completion_tokens_default=default)
        file: Upload = document["file"]
        content = await checked_file(file.content, checker)
        document["file"] = msgspec.structs.replace(file, content=content)
        return await checker.checked(self._access.files_at), checker.provider

    def _first(self, api: ObjectApi) -> Provider:
        """The first provider that takes files, for a file without a model. Raises ApiError."""
        found = next((one for one in self._providers.values() if one.supports(api)), None)
        if found is None:
            raise errors.bad_request("No provider accepts files of this API.", code="endpoint_not_supported")
        return found

    async def _sent(
        self, made_for: Asked, provider: Provider, wire: list[bytes], file: StoredFile
    ) -> web.StreamResponse:
        """Upload the file, and store its owner. `file`: the stored row, still without the id. Raises ApiError."""
        answer = await asked(self._client, provider, *wire)
        if not 200 <= answer.status < 300:
            return await passed(answer, provider, "", made_for.request, made_for.connection)
        told = await object_in(answer, provider)
        try:
            file_id = _made(told).id
        except (msgspec.MsgspecError, UnicodeDecodeError):
            file_id = ""
        if not is_id(file_id):
            raise errors.upstream_failed()
        file = msgspec.structs.replace(file, file_id=file_id)
        await self._access.stored(self._access.ports.files.add, file)
        return passed_on(made_for, answer, provider, told)

    async def _list(self, made_for: Asked) -> web.StreamResponse:
        wanted = page_asked(made_for)
        files, more = await self._access.stored(self._access.ports.files.page, made_for.api.name, made_for.key, wanted)
        places = [(file.file_id, file.provider, file.credential) for file in files]
        return await listed(self._access, self._client, made_for, places, more=more)

    async def _passed(self, operation: Operation, made_for: Asked) -> web.StreamResponse:
        file, provider = await self._access.file(made_for)
        if file.made_by is not None and operation is not RETRIEVE:
            batch = await self._access.stored(self._access.ports.batches.of_exchange, file.made_by)
            if batch is None:
                raise errors.unknown_object("file", file.file_id)
            await self._settled(batch)
        answer = await answer_of(self._client, operation, made_for, provider, file.credential)
        try:
            if operation is DELETE and 200 <= answer.status < 300:
                await self._access.stored(self._access.ports.files.forget, file.file_id)
            return await passed(answer, provider, file.made_by or "", made_for.request, made_for.connection)
        finally:
            answer.close()


def _batches_of(api: ObjectApi) -> BatchApi:
    """The API of the batches that use files of this API."""
    family = api.name.partition(".")[0]
    return next(one for one in BATCH_APIS if one.name.partition(".")[0] == family)


def _purpose(api: FileApi, document: dict[str, Any]) -> str:
    """The purpose of an upload, after a check of its fields. Raises ApiError."""
    for name in document:
        if name != "file" and name not in api.fields:
            raise errors.bad_request(f"{name}: is no field of an upload", param=name, code="invalid_value")
    if not isinstance(document.get("file"), Upload):
        raise errors.bad_request("file: must be a file", param="file", code="invalid_value")
    for name, required in api.fields.items():
        if (required or name in document) and not isinstance(document.get(name), str):
            raise errors.bad_request(f"{name}: must be a string", param=name, code="invalid_value")
    purpose = document.get("purpose", "")
    if api.purposes and purpose not in api.purposes:
        served = ", ".join(api.purposes)
        raise errors.bad_request(
            f"purpose: must be one of {served}; files for other purposes cannot be metered",
            param="purpose", code="invalid_value",
        )  # fmt: skip
    return str(purpose)
