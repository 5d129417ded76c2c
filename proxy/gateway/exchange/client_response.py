"""The response of an exchange to its client: its head, whole bodies, and refusals.

Invariant: a provider's error is relayed unchanged, unless it would reveal a secret or an address of the operator.
"""

from __future__ import annotations

from aiohttp import web

from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.provider import Provider
from proxy.http import errors
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.headers import EXCHANGE_HEADER, SERVER, Headers, downward
from proxy.http.reply import Reply
from proxy.metering.dialect import Dialect


class ClientResponse:
    """One response. `reply`: the response object for aiohttp."""

    def __init__(self, request: web.BaseRequest, dialect: Dialect, exchange_id: str, own_headers: Headers) -> None:
        """`own_headers`: headers of every response of this exchange."""
        self.reply = Reply(request)
        self._dialect = dialect
        self._exchange_id = exchange_id
        self._own_headers = tuple(own_headers)

    def begin(self, answer: Answer, provider: Provider, *, streamed: bool, length: int | None) -> bool:
        """Write the head of an answer that is relayed piece by piece. False: the client is gone."""
        return self.reply.begin(answer.status, self._headers(answer, provider, streamed=streamed), length=length)

    def deliver(self, answer: Answer, provider: Provider, body: bytes) -> None:
        """Write an answer with its whole body."""
        self.reply.begin(answer.status, self._headers(answer, provider), length=len(body), body=body)

    def pass_refusal(self, answer: Answer | None, status: int, body: bytes | None, provider: Provider) -> None:
        """Write a provider's error."""
        readable = body if body is None or answer is None else answer.readable(body)
        if status in (401, 407) or (
            status == 403 and readable is not None and self._is_about_credentials(answer, readable)
        ):
            self.refuse(errors.upstream_auth())
        elif status < 400 or body is None or readable is None or provider.is_revealed_by(readable):
            self.refuse(errors.upstream_failed())
        else:
            assert answer is not None
            self.deliver(answer, provider, body)

    def refuse(self, refusal: ApiError) -> None:
        """Write an error of the proxy."""
        told = self._dialect.errors.headers(refusal)
        fields = [("Content-Type", JSON_TYPE), SERVER, (EXCHANGE_HEADER, self._exchange_id), *told, *self._own_headers]
        if refusal.retry_after_s is not None:
            fields.append(("Retry-After", str(refusal.retry_after_s)))
        body = refusal.body(self._dialect.errors)
        self.reply.begin(refusal.status, fields, length=len(body), body=body)

    def _headers(self, answer: Answer, provider: Provider, *, streamed: bool = False) -> list[tuple[str, str]]:
        return downward(
            answer.head,
            self._exchange_id,
            streamed=streamed,
            more=self._dialect.headers_down,
            rules=provider.header_rules,
            own=self._own_headers,
        )

    def _is_about_credentials(self, answer: Answer | None, refusal: bytes) -> bool:
        """True if a provider's error is about its credentials, by its text or a header that would pass."""
        parts = self._dialect.credential_refusals
        if not parts or answer is None:
            return False
        told = [value.encode("latin-1") for name, value in answer.head.headers if name in self._dialect.headers_down]
        return any(part in text for text in (refusal, *told) for part in parts)
