"""Turns a request into an open exchange, and serves it.

Invariants: nothing is sent upstream before the exchange is open in the outbox. A refusal before that leaves no entry.

`Idempotency-Key`: a repeated request is billed once. A token belongs to one API key, to one narrowed key, or to one
person of an identity. A stored answer is sent again unchanged. A repeat during the first request, or without a stored
answer, returns 409 with the exchange's id. Another body or path under the same token returns 422. A token whose request
was not billed can be used again.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from time import monotonic
from typing import Any

from aiohttp import web
from msgspec import UNSET

from proxy.billing.details import EntryDetails
from proxy.billing.keys import ApiKey
from proxy.billing.record import Outcome
from proxy.foundation.ids import exchange_id
from proxy.foundation.slices import AT_ONCE_BYTES, in_slices
from proxy.gateway.authentication import Accepting, about_key, authenticated, own_credential
from proxy.gateway.exchange.admitted import AdmittedRequest
from proxy.gateway.exchange.exchange import Exchange
from proxy.gateway.exchange.fallback import admit_or_fall_back
from proxy.gateway.exchange.hand_over import Background
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.opener import ExchangeOpener, checked
from proxy.gateway.exchange.running import ExchangeOwners, LiveExchange
from proxy.gateway.exchange.told_cost import TellsCost
from proxy.gateway.exchange.uploads import Upload, Uploads
from proxy.gateway.ports import Ports, RequestLimits
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.errors import JSON_TYPE, AboutRequest, ApiError
from proxy.http.headers import EXCHANGE_HEADER, SERVER, TRACEPARENT
from proxy.http.request_body import CODECS, BodyCodec, is_compressed, read_body
from proxy.keys.idempotency import Claims, IdempotencyRecord, digest_of
from proxy.keys.keyring import Keyring
from proxy.metering.dialect import Dialect
from proxy.metering.file_ids import file_ids, may_name_files
from proxy.metering.request import COST_MEMBER, RequestFacts, cost_asked

IDEMPOTENCY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "idempotent-replayed"
# Stripe's and the RFC draft's own limit.
TOKEN_CHARS_MAX = 255


class Claim:
    """The claim of a request on its token. Call `end` exactly once."""

    def __init__(self, claims: Claims, holder_id: str, token: str, exchange_id: str) -> None:
        self._claims = claims
        self._holder_id = holder_id
        self._token = token
        self._exchange_id = exchange_id

    def keep_answer(self, open_exchange: OpenExchange) -> None:
        """Make the exchange keep its answer, if it is short enough."""
        open_exchange.keeps = self._claims.answer_bytes_max

    async def end(self, open_exchange: OpenExchange | None) -> None:
        """Record the end of the exchange; None: it was not admitted. Never raises."""
        billed = open_exchange is not None and open_exchange.billed
        answer = open_exchange.kept if open_exchange is not None else None
        await self._claims.end(self._holder_id, self._token, self._exchange_id, billed=billed, answer=answer)


async def claimed(
    request: web.BaseRequest, key: ApiKey, codec: BodyCodec, body: bytes, exchange_id: str, claims: Claims
) -> Claim | web.Response | None:
    """The claim of a request with a token; the stored answer of an earlier one; None without a token.

    Raises ApiError for a repeated request whose answer is not stored.
    """
    if IDEMPOTENCY_HEADER not in request.headers:
        return None
    token = request.headers[IDEMPOTENCY_HEADER]
    if not 1 <= len(token) <= TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable():
        message = f"{IDEMPOTENCY_HEADER} must have 1 to {TOKEN_CHARS_MAX} printable ASCII characters."
        raise errors.bad_request(message, param=IDEMPOTENCY_HEADER, code="invalid_header")
    pieces = codec.idempotency_bytes(body, request.headers.get("Content-Type", ""))
    digest = await in_slices(len(body), digest_of, chain((request.raw_path.encode() + b"\n",), pieces))
    try:
        earlier = await claims.claim(key.holder_id, token, digest, exchange_id)
    except OSError:
        message = f"This {IDEMPOTENCY_HEADER} cannot be checked right now. Please try again later."
        raise errors.overloaded(message, code="idempotency_unknown") from None
    if earlier is None:
        return Claim(claims, key.holder_id, token, exchange_id)
    return _stored_answer(earlier)


def _stored_answer(earlier: IdempotencyRecord) -> web.Response:
    headers = dict((SERVER, (EXCHANGE_HEADER, earlier.exchange_id)))
    if earlier.same_body and earlier.answer is not None:
        headers[REPLAYED_HEADER] = "true"
        return web.Response(body=earlier.answer, content_type=JSON_TYPE, headers=headers)
    refusal = _repeat_refused(earlier)
    refusal.headers = (*headers.items(), errors.NO_RETRY)
    raise refusal


def _repeat_refused(earlier: IdempotencyRecord) -> ApiError:
    which = f"the exchange {earlier.exchange_id}"
    if not earlier.same_body:
        message = f"This {IDEMPOTENCY_HEADER} belongs to another request, {which}."
        return ApiError(422, message, param=IDEMPOTENCY_HEADER, code="idempotency_mismatch")
    if earlier.ended:
        message = f"This request was served before, by {which}, and is not billed again; its answer is not stored."
        return ApiError(409, message, param=IDEMPOTENCY_HEADER, code="idempotency_served")
    message = f"This request is being served, by {which}."
    return ApiError(409, message, param=IDEMPOTENCY_HEADER, code="idempotency_running")


def read_request(
    codec: BodyCodec, dialect: Dialect, body: bytes, content_type: str, named: str | None
) -> tuple[dict[str, Any], RequestFacts, Collection[str]]:
    """The document of a body, its facts, and the ids of files that it names. `named`: the model in the path. Raises
    ApiError."""
    document = codec.parse(body, content_type)
    facts = checked(dialect.facts, document, named)
    if dialect.measured is not None:
        facts = dialect.measured(facts, document)
    return document, facts, file_ids(document) if dialect.names_files and may_name_files(body) else ()


class ProxyHandler:
    """Handles requests to providers."""

    def __init__(
        self,
        *,
        keys: Keyring,
        opener: ExchangeOpener,
        ports: Ports,
        uploads: Uploads,
        limits: RequestLimits,
        accepting: Accepting,
        background: Background,
        owners: ExchangeOwners,
    ) -> None:
        """`background`: takes over exchanges, and reports their ends to `owners`."""
        self._keys = keys
        self._opener = opener
        self._ports = ports
        self._limits = limits
        self._accepting = accepting
        self._uploads = uploads
        self.live: set[LiveExchange] = set()
        self.owners = owners
        self._background = background

    async def serve(
        self, request: web.BaseRequest, connection: ClientConnection, dialect: Dialect, named: str | None
    ) -> web.StreamResponse:
        """Serve one exchange to its end. `named`: the model in the path. Raises ApiError if it is not admitted."""
        received_at = monotonic()
        self._accepting.check()
        key = await authenticated(self._keys, request)
        upload, about = None, about_key(key, dialect.endpoint)
        try:
            try:
                if not _is_here(request):
                    upload = self._uploads.begin(key.key_id, self._keys.scopes(key))
                begun = await self._begin(request, connection, dialect, named, key, received_at, upload, about)
            except ApiError as refusal:
                refusal.about = about
                raise
            if not isinstance(begun, tuple):
                return begun
            exchange, open_exchange, claim = begun
            self.live.add(exchange)
            self.owners.began(exchange.exchange_id, key.key_id)
            try:
                return await exchange.run()
            finally:
                self.live.discard(exchange)
                if not open_exchange.handed_over:
                    self.owners.ended(exchange.exchange_id)
                if claim is not None:
                    await claim.end(open_exchange)
        finally:
            if upload is not None:
                upload.free()

    async def _begin(
        self,
        request: web.BaseRequest,
        connection: ClientConnection,
        dialect: Dialect,
        named: str | None,
        key: ApiKey,
        received_at: float,
        upload: Upload | None,
        about: AboutRequest,
    ) -> web.Response | tuple[Exchange, OpenExchange, Claim | None]:
        """Admit and open an exchange; or return the stored answer of an earlier request. The body and its document are
        freed when this call returns: an exchange can take an hour. `about`: gets the model."""
        credential = None if key.byok is None else own_credential(request)
        body = await self._body(request, upload)
        if upload is not None:
            upload.arrived()
        codec, content_type = CODECS[dialect.request_body], request.headers.get("Content-Type", "")
        size = len(body)
        document, facts, files = (
            read_request(codec, dialect, body, content_type, named)
            if size <= AT_ONCE_BYTES
            else await in_slices(size, read_request, codec, dialect, body, content_type, named)
        )
        about.model = facts.model
        tells_cost = self._tells_cost(document, key) if dialect.cost_path else TellsCost.NO
        opener = self._opener
        route = opener.find_route(facts.model, key, dialect)
        if credential is not None:
            _refuse_background(facts)
        elif facts.continues is not None or files:  # else the provider checks them against the client's own account
            route = await opener.pin_provider(route, facts.continues, files, key)
        sent = self._ports.dimensions.sent(key, request.headers, dialect.name, document)
        dimensions = await self._ports.dimensions.ids(key, sent) if sent else UNSET
        new_id = exchange_id()
        claim = await claimed(request, key, codec, body, new_id, self._ports.claims)
        if claim is not None and not isinstance(claim, Claim):
            return claim
        open_exchange: OpenExchange | None = None
        try:
            route = opener.order_by_health(route, facts.model)
            open_exchange, facts, route = await admit_or_fall_back(
                opener, new_id, dialect, key, facts, route,
                pinned=facts.continues is not None or bool(files) or credential is not None,
                received_at=received_at, dimensions=dimensions, byok=credential is not None,
            )  # fmt: skip
            if self._ports.traces is not None:
                open_exchange.traceparent = request.headers.get(TRACEPARENT)
            if claim is not None:
                claim.keep_answer(open_exchange)
            admitted = AdmittedRequest(
                request, connection, dialect, facts, document, key, route, open_exchange, received_at, tells_cost,
                upload, size, credential,
            )  # fmt: skip
            exchange = Exchange(admitted, self._ports, self._background)
        except BaseException:
            await _end_unopened(open_exchange, claim)
            raise
        return exchange, open_exchange, claim

    def _tells_cost(self, document: dict[str, Any], key: ApiKey) -> TellsCost:
        """Raises ApiError."""
        if COST_MEMBER in document and checked(cost_asked, document):
            return TellsCost.ASKED
        return TellsCost.WITH_USAGE if self._keys.access(key).cost_in_answers else TellsCost.NO

    async def _body(self, request: web.BaseRequest, upload: Upload | None) -> bytes:
        try:
            if upload is None:
                return await read_body(request, bytes_max=self._limits.body_bytes_max)
            return await read_body(request, bytes_max=self._limits.body_bytes_max, grew=upload.grew)
        except (web.RequestPayloadError, ConnectionError):
            raise errors.bad_request("The request body is incomplete.", code="incomplete_body") from None


async def _end_unopened(open_exchange: OpenExchange | None, claim: Claim | None) -> None:
    """The request is not admitted, or a bug of ours prevents its exchange."""
    if open_exchange is not None:
        open_exchange.close(Outcome.CRASHED, now=monotonic(), details=EntryDetails(failed="proxy_bug"))
    if claim is not None:
        await claim.end(open_exchange)


def _refuse_background(facts: RequestFacts) -> None:
    """Raises ApiError if the provider would generate the answer in the background: the client's own credential is not
    kept until it is asked for."""
    if facts.in_background:
        raise errors.byok_unsupported("background", param="background")


def _is_here(request: web.BaseRequest) -> bool:
    """True if the body has arrived with its head, as most do, and takes no more memory than these bytes."""
    return request.content.is_eof() and not is_compressed(request)
