"""`Idempotency-Key`: a repeated request is billed once.

Invariants: a token belongs to one API key. A stored answer is sent again unchanged. A repeat during the first request,
or without a stored answer, returns 409 with the exchange's id. Another body or path under the same token returns 422.
A token whose request was not billed can be used again.
"""

from __future__ import annotations

from aiohttp import web

from proxy.billing.idempotency_record import IdempotencyRecord
from proxy.billing.keys import ApiKey
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.http import errors
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.headers import EXCHANGE_HEADER, SERVER
from proxy.keys.idempotency import Claims

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "idempotent-replayed"
# Stripe's and the RFC draft's own limit.
TOKEN_CHARS_MAX = 255


class Claim:
    """The claim of a request on its token. Call `end` exactly once."""

    def __init__(self, claims: Claims, key_id: str, token: str, exchange_id: str) -> None:
        self._claims = claims
        self._key_id = key_id
        self._token = token
        self._exchange_id = exchange_id

    def keep_answer(self, open_exchange: OpenExchange) -> None:
        """Let the exchange keep its answer, if that is short enough."""
        open_exchange.keeps = self._claims.answer_bytes_max

    async def end(self, open_exchange: OpenExchange | None) -> None:
        """Record the end of the exchange; None: it was not admitted. Never raises."""
        billed = open_exchange is not None and open_exchange.billed
        answer = open_exchange.kept if open_exchange is not None else None
        await self._claims.end(self._key_id, self._token, self._exchange_id, billed=billed, answer=answer)


async def claimed(
    request: web.BaseRequest, key: ApiKey, body: bytes, exchange_id: str, claims: Claims
) -> Claim | web.Response | None:
    """The claim of a request with a token; the stored answer of an earlier one; None without a token.

    Raises ApiError for a repeated request whose answer is not stored.
    """
    token = request.headers.get(HEADER)
    if token is None:
        return None
    if not 1 <= len(token) <= TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable():
        message = f"{HEADER} must have 1 to {TOKEN_CHARS_MAX} printable ASCII characters."
        raise errors.bad_request(message, param=HEADER, code="invalid_header")
    try:
        earlier = await claims.claim(key.key_id, token, request.raw_path.encode() + b"\n" + body, exchange_id)
    except OSError:
        message = f"This {HEADER} cannot be checked right now. Please try again later."
        raise errors.overloaded(message, code="idempotency_unknown") from None
    if earlier is None:
        return Claim(claims, key.key_id, token, exchange_id)
    return _answered(earlier)


def _answered(earlier: IdempotencyRecord) -> web.Response:
    headers = dict((SERVER, (EXCHANGE_HEADER, earlier.exchange_id)))
    if earlier.same_body and earlier.answer is not None:
        headers[REPLAYED_HEADER] = "true"
        return web.Response(body=earlier.answer, content_type=JSON_TYPE, headers=headers)
    refusal = _refusal(earlier)
    refusal.headers = (*headers.items(), errors.NO_RETRY)
    raise refusal


def _refusal(earlier: IdempotencyRecord) -> ApiError:
    which = f"the exchange {earlier.exchange_id}"
    if not earlier.same_body:
        message = f"This {HEADER} belongs to another request, {which}."
        return ApiError(422, message, param=HEADER, code="idempotency_mismatch")
    if earlier.ended:
        message = f"This request was served before, by {which}, and is not billed again; its answer is not stored."
        return ApiError(409, message, param=HEADER, code="idempotency_served")
    message = f"This request is being served, by {which}."
    return ApiError(409, message, param=HEADER, code="idempotency_running")
