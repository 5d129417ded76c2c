"""The request of an exchange to a provider, until the head of an answer.

Invariant: the target consists of the dialect's path, the route's model and the query names that the dialect lists; no
part of the client's path is sent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from contextlib import suppress
from time import monotonic
from typing import NamedTuple
from urllib.parse import quote

from proxy.foundation.slices import AT_ONCE_BYTES, in_slices
from proxy.gateway.exchange.admitted import AdmittedRequest
from proxy.gateway.exchange.first_event import first_look
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.credentials import Use
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.provider_call import Failover, ProviderCall
from proxy.gateway.upstream.refusals import FAILED_ANSWER, may_be_answered_elsewhere
from proxy.http.errors import JSON_TYPE
from proxy.http.headers import upward
from proxy.http.request_body import CODECS
from proxy.metering.compressed import compressed_meter
from proxy.metering.dialect import NAME, NO_HEADERS, Dialect
from proxy.metering.held_text import AnswerText
from proxy.metering.metered import BodyMeter
from proxy.metering.request import COST_MEMBER
from proxy.metering.wire.framing import Framing

# An error answer is read whole before it is passed on; a longer one is replaced by our own.
ERROR_BYTES_MAX = 256 * 1024
# How servers refuse a field that they do not know; those that validate against a schema say 422.
_UNKNOWN_FIELD = (400, 422)

# The part of `first_byte_s` after which an answer is not looked at any more before it is relayed.
_UNUSED = 0.9

_VALUE = re.compile(r"[A-Za-z0-9_.~%+-]{0,200}", re.ASCII)


class Refusal(NamedTuple):
    """An answer that is not 2xx."""

    answer: Answer
    body: bytes | None
    """None: it could not be read, or is longer than ERROR_BYTES_MAX"""


class UpstreamRequest(ProviderCall[Answer]):
    """One request to generate an answer. It is also sent again to the same provider without `include_usage`, if that
    was rejected."""

    def __init__(self, admitted: AdmittedRequest, ports: Ports) -> None:
        opened = admitted.open_exchange.opened
        tokens = opened.prompt_tokens_estimate + (opened.completion_tokens_max or 0)
        self._own_credential = admitted.own_credential
        super().__init__(admitted.route, ports.unix_time, tokens)
        self._request = admitted.request
        self._dialect = admitted.dialect
        self._facts = admitted.facts
        self._document = admitted.document
        self._upstream = ports.upstream
        self._body_bytes = admitted.body_bytes
        self._wire: list[bytes] = []
        self.injected = self._injects()
        """`include_usage` was added; the usage event must be stripped from the answer"""
        self._refused_injected = False
        """the current provider refused the request with `include_usage`; it is sent again without"""
        self._refusal_body: bytes | None = None  # of an error, if it was read already
        self.held: BodyMeter | None = None
        """the meter of an accepted answer, until its first event has arrived"""
        self.answer: Answer | None = None
        """the answer for the client; None: there is none yet"""
        self.refusal: Refusal | None = None
        """the answer, if it is not 2xx"""

    def _injects(self) -> bool:
        if self._dialect.stripper is None or not self._facts.streamed or self._facts.usage_asked:
            return False
        return self.route.provider.injects(self.route.upstream_model, monotonic())

    def meter(self, answer: Answer, *, holds_text: bool = True) -> tuple[BodyMeter, Framing | None]:
        """A meter of the answer, and the framing of its events; None: it is no stream. `holds_text`: the meter keeps
        the text, to count it with a vocabulary."""
        dialect, names = self._dialect, self._dialect.headers_read
        framing = dialect.framing(answer.content_type, streamed=self._facts.streamed)
        told = {name: value for name, value in answer.head.headers if name in names} if names else NO_HEADERS
        counter = self.route.counter
        room = None if counter is None or not holds_text else counter.room
        held = None if room is None else AnswerText(room)
        if framing is None:
            meter: BodyMeter = dialect.plain_meter(told, held)
        else:
            meter = dialect.stream_meter(framing, self.route.provider.settings.cumulative, held, told)
        return (compressed_meter(answer.coding, meter) if answer.coding else meter), framing

    async def prepare(self) -> None:
        """Make the bytes of the request to the current provider."""
        if self._body_bytes <= AT_ONCE_BYTES:
            content_type, body = self._written()
        else:
            content_type, body = await in_slices(self._body_bytes, self._written)
        path = target(self._dialect, self.route.upstream_model, self._request.raw_path)
        fields = f"Content-Type: {content_type}\r\n{self.headers()}"
        self._wire = self.route.provider.request(self._dialect, path, body, fields, self._own_credential)

    def _written(self) -> tuple[str, list[bytes]]:
        """The content type and the body."""
        model = self.route.upstream_model
        document = self._dialect.upstream_document(self._document, upstream_model=model, inject_usage=self.injected)
        if COST_MEMBER in document and self._dialect.cost_path and not self.route.provider.knows_usage_include:
            del document[COST_MEMBER]
        return CODECS[self._dialect.request_body].write(document)

    def headers(self) -> str:
        """The client's headers that are sent to the provider."""
        return upward(self._request.headers, self._dialect.headers_up, self.route.provider.header_rules)

    def accepted(self) -> None:
        """The answer is 2xx: the request is not sent again, and need not be kept as long as its answer takes."""
        if self._refused_injected:
            self.route.provider.accepted_only_without_usage(self.route.upstream_model, monotonic())
        self._document, self._wire, self._own_credential = {}, [], None

    async def refused(self, answer: Answer) -> None:
        """The answer is not 2xx: read its body."""
        body = self._refusal_body
        if body is None and answer.status >= 400:
            with suppress(UpstreamFailedError):
                body = await answer.read(ERROR_BYTES_MAX)
        self.refusal = Refusal(answer, body)

    def _send(self, provider: Provider, use: Use | None) -> Awaitable[Answer]:
        wire = self._wire
        if not wire:
            return self._prepare_and_send(provider, use)
        if use is not None:
            wire = [provider.with_credential(self._dialect.key_header, wire[0], use.credential), *wire[1:]]
        return self._upstream.ask(provider, *wire)

    async def _prepare_and_send(self, provider: Provider, use: Use | None) -> Answer:
        await self.prepare()
        return await self._send(provider, use)

    def fail_over(self, failover: Failover) -> None:
        """Use this provider next."""
        super().fail_over(failover)
        self.injected, self._refused_injected = self._injects(), False
        self._wire = []

    async def _failure_in(self, answer: Answer) -> str | None:
        """Why an accepted answer failed before its first event; None: no failure in the part that was read."""
        settings, dialect = self.route.provider.settings, self._dialect
        unused_s = self._asked_at + self.route.provider.limits.first_byte_s * _UNUSED - monotonic()
        limit_s = min(settings.timeouts.first_event_s, unused_s)
        if limit_s <= 0 or not may_be_answered_elsewhere(FAILED_ANSWER, settings.failover_on):
            return None
        meter, framing = self.meter(answer, holds_text=False)
        may_be_empty = dialect.plain is not None
        if may_be_empty and framing is None and answer.content_type != JSON_TYPE:
            return None  # a sound, or a text: it is relayed as it comes
        self.held = meter
        look = await first_look(answer, meter, limit_s, may_be_empty=may_be_empty)
        self.held = None  # not if it was cancelled: then it ends the exchange
        if look.begun:
            self.ended(failed=False)
        return look.failed

    async def _is_changed(self, answer: Answer) -> bool:
        """Read the answer. Returns whether the provider refuses `include_usage`; then it is not sent again."""
        settings = self.route.provider.settings
        if answer.status not in _UNKNOWN_FIELD or not self.injected or settings.inject_usage != "auto":
            return False
        self._refusal_body = await answer.read(ERROR_BYTES_MAX)
        answer.close()
        if self._refusal_body is None or b"stream_options" not in self._refusal_body:
            return False
        # Not remembered yet: a client can make any provider name the field, in a request that is refused either way.
        self._refused_injected = True
        self.injected = False
        self._refusal_body = None
        self._wire = []
        return True

    # -- the answer

    def pause(self) -> None:
        """Stop reading the answer."""
        if self.answer is not None:
            self.answer.pause_reading()

    def resume(self) -> None:
        """Continue reading the answer."""
        if self.answer is not None:
            self.answer.resume_reading()

    def close(self) -> None:
        """Discard the rest of the answer."""
        if self.answer is not None:
            self.answer.close()


def target(dialect: Dialect, upstream_model: str, raw_path: str) -> str:
    """The path and query to append to a provider's base URL."""
    path = dialect.upstream_path
    if NAME in path:
        path = path.replace(NAME, quote(upstream_model, safe=dialect.name_safe))
    if dialect.query and "?" in raw_path:
        parts = raw_path.partition("?")[2].partition("#")[0].split("&")
        passed = [part for part in parts if _passes(part, dialect.query)]
        path += "?" + "&".join(passed) if passed else ""
    return path


def _passes(part: str, names: tuple[str, ...]) -> bool:
    name, _, value = part.partition("=")
    return part in names or (name in names and _VALUE.fullmatch(value) is not None)
