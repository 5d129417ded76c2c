"""The request to a provider, until the head of an answer, and who else may be asked.

Invariant: the target consists of the dialect's path, the route's model and the query names that the dialect lists; no
part of the client's path is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import random
from time import monotonic
from typing import Any
from urllib.parse import quote

from aiohttp import web

from proxy.billing.record import Attempt
from proxy.foundation.times import retry_after_s
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import (
    NoCredentialError,
    NotSentError,
    OutOfConnectionsError,
    UpstreamFailedError,
)
from proxy.gateway.upstream.credentials import Credential, CredentialPool, Use
from proxy.gateway.upstream.health import Health
from proxy.gateway.upstream.routing import Route
from proxy.http.headers import upward
from proxy.http.request_body import CODECS
from proxy.metering.dialect import NAME, Dialect
from proxy.metering.held_text import AnswerText
from proxy.metering.metered import BodyMeter
from proxy.metering.request import COST_MEMBER, RequestFacts
from proxy.metering.wire.framing import Framing

# An error answer is read whole before it is passed on; a longer one is replaced by our own.
ERROR_BYTES_MAX = 256 * 1024
# How servers refuse a field that they do not know; those that validate against a schema say 422.
_UNKNOWN_FIELD = (400, 422)

# Statuses that another credential may not get.
_ABOUT_CREDENTIALS = frozenset((401, 403, 429))

_VALUE = re.compile(r"[A-Za-z0-9_.~%+-]{0,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Failover:
    """An attempt that failed, and the provider that may be asked instead."""

    route: Route
    attempt: Attempt
    outcome: Answer | UpstreamFailedError
    """what the exchange has if nobody else is asked"""

    def stays(self) -> Answer:
        """Nobody else is asked. Raises UpstreamFailedError."""
        if isinstance(self.outcome, UpstreamFailedError):
            raise self.outcome
        return self.outcome


class UpstreamRequest:
    """One request, sent to one provider after another, as its exchange decides. It is sent again to the same provider
    without `include_usage` if that was rejected, and with another credential if there are several.

    Another provider is proposed only if this one was unreachable or answered 429 or 5xx. If a request was sent and then
    the connection broke or timed out, it may have been served and billed: it is not sent again.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        dialect: Dialect,
        facts: RequestFacts,
        document: dict[str, Any],
        route: Route,
        ports: Ports,
        tokens: int = 0,
    ) -> None:
        """`tokens`: what it probably takes, for the limits of credentials."""
        self._request = request
        self._dialect = dialect
        self._facts = facts
        self._document = document
        self.route = route
        self._ports = ports
        self._tokens = tokens
        self.use: Use | None = None
        """of the current provider's credentials, the one that was sent last; None: it has not several"""
        self._tried: dict[Credential, int] = {}
        """those that this request was refused with, and the status"""
        self.injected = self._injects()
        """`include_usage` was added; the usage event must be stripped from the answer"""
        self._refused_injected = False
        """the current provider refused the request with `include_usage`; it is sent again without"""
        self.refusal: bytes | None = None
        """the body of such an error, if it was read already"""

    def _injects(self) -> bool:
        if self._dialect.stripper is None or not self._facts.streamed or self._facts.usage_asked:
            return False
        return self.route.provider.injects(self.route.upstream_model, monotonic())

    def meter(self, framing: Framing | None, told: Mapping[str, str]) -> BodyMeter:
        """The meter of an answer; None: it is no stream. `told`: headers of the answer that it reads."""
        counter = self.route.counter
        room = None if counter is None else counter.room
        held = None if room is None else AnswerText(room)
        if framing is None:
            return self._dialect.plain_meter(told, held)
        return self._dialect.stream_meter(framing, self.route.provider.settings.cumulative, held, told)

    def wire(self) -> bytes:
        """The bytes of the request."""
        model = self.route.upstream_model
        document = self._dialect.upstream_document(self._document, upstream_model=model, inject_usage=self.injected)
        if COST_MEMBER in document and self._dialect.cost_path and not self.route.provider.knows_usage_include:
            del document[COST_MEMBER]
        content_type, body = CODECS[self._dialect.request_body].write(document)
        provider = self.route.provider
        headers = upward(self._request.headers, self._dialect.headers_up, provider.header_rules)
        path = target(self._dialect, model, self._request.raw_path)
        return provider.request(self._dialect, path, body, f"Content-Type: {content_type}\r\n{headers}")

    def forget(self) -> None:
        """A provider has accepted: the request is not sent again, and need not be kept as long as its answer takes."""
        self._document = {}

    def release(self, tokens: int | None) -> None:
        """The credential's request is over; it has used so many tokens. None: as many as were reserved."""
        if self.use is not None:
            self.use.end(tokens)

    async def ask(self, wire: bytes) -> Answer | Failover:
        """Send `wire` to the current provider. Raises UpstreamFailedError."""
        while True:
            provider = self.route.provider
            began_at = monotonic()
            use, sent = None, wire
            if provider.pool is not None:
                if (use := self._takes(provider.pool, began_at)) is None:
                    return self._without_credential(provider.pool, began_at)
                sent = provider.with_credential(self._dialect.key_header, wire, use.credential)
            provider.health.asked(began_at)
            try:
                answer = await self._ports.upstream.ask(provider, sent)
            except UpstreamFailedError as failure:
                return self._unanswered(began_at, failure)
            status = answer.status
            if status < 400:
                provider.health.answered()
                if use is not None:
                    self._accepted(use)
                if self._refused_injected:
                    provider.accepted_only_without_usage(self.route.upstream_model, monotonic())
                return answer
            self._note(answer, provider.health, use)
            if use is not None and self._tries_another(use, answer):
                continue
            if status == 429 or status >= 500:
                return self._failover(began_at, "refused" if status == 429 else "failed", answer) or answer
            if not await self._refused_for_usage(answer):
                return answer
            wire = self.wire()

    def _unanswered(self, began_at: float, failure: UpstreamFailedError) -> Failover:
        """Raises UpstreamFailedError if nobody else may be asked."""
        if isinstance(failure, OutOfConnectionsError):
            raise failure  # says nothing about the provider, and another one could not be reached either
        self.route.provider.health.failed(monotonic())
        other = self._failover(began_at, str(failure), failure) if isinstance(failure, NotSentError) else None
        if other is None:
            raise failure
        return other

    def fail_over(self, failover: Failover) -> None:
        """Ask that provider next."""
        if isinstance(failover.outcome, Answer):
            failover.outcome.close()
        self.release(0)
        self.route, self.use, self._tried = failover.route, None, {}
        self.injected, self._refused_injected = self._injects(), False

    async def _refused_for_usage(self, answer: Answer) -> bool:
        """Whether the provider refuses `include_usage`, which is not sent again then; reads the answer."""
        settings = self.route.provider.settings
        if answer.status not in _UNKNOWN_FIELD or not self.injected or settings.inject_usage != "auto":
            return False
        self.refusal = await answer.read(ERROR_BYTES_MAX)
        answer.close()
        if self.refusal is None or b"stream_options" not in self.refusal:
            return False
        # Not remembered yet: a client can make any provider name the field, in a request that is refused either way.
        self._refused_injected = True
        self.injected = False
        self.refusal = None
        return True

    def _note(self, answer: Answer, health: Health, use: Use | None) -> None:
        now = monotonic()
        if answer.status >= 500:
            health.failed(now)
        else:
            health.answered()
        if answer.status in (429, 503):
            rest_s = retry_after_s(answer.head.header("retry-after"), self._ports.unix_time())
            if rest_s is not None and use is not None and answer.status == 429:
                use.credential.rests(now, rest_s)
                rest_s = use.pool.rests_s(now)
            if rest_s is not None:
                health.rests(now, rest_s)

    # -- one of several credentials

    def _takes(self, pool: CredentialPool, now: float) -> Use | None:
        """The use of a credential that this request has not tried; None: there is none now."""
        self.release(0)
        use = pool.take(now, self._tokens, random, self._tried)
        self.use = use or self.use
        return use

    def _without_credential(self, pool: CredentialPool, now: float) -> Failover:
        """Another provider. Raises NoCredentialError."""
        failure = NoCredentialError(pool.away_s(now, self._tokens), rejected=pool.all_rejected)
        other = self._failover(now, str(failure), failure)
        if other is None:
            raise failure
        return other

    def _tries_another(self, use: Use, answer: Answer) -> bool:
        """Whether the answer may be about the credential, and there is another one for this request."""
        if answer.status not in _ABOUT_CREDENTIALS:
            return False
        self._tried[use.credential] = answer.status
        if answer.status == 401:
            self._reject(use.pool, use.credential, answer.status)
        if use.pool.away_s(monotonic(), self._tokens, self._tried):
            return False
        answer.close()
        return True

    def _accepted(self, use: Use) -> None:
        """So a 403 was about the credential: a client can make any provider answer it, but then to all of them."""
        use.credential.accepted()
        for other, status in self._tried.items():
            if status == 403:
                self._reject(use.pool, other, status)

    def _reject(self, pool: CredentialPool, credential: Credential, status: int) -> None:
        now = monotonic()
        credential.rejected(now, status)
        self.route.provider.health.rests(now, pool.rests_s(now))

    def _failover(self, began_at: float, failed: str, outcome: Answer | UpstreamFailedError) -> Failover | None:
        """The next provider that is well; None: there is none."""
        now = monotonic()
        before, others = self.route, self.route.others
        while others and others[0].provider.health.away_s(now):
            others = others[1:]
        if not others:
            return None
        attempt = Attempt(
            provider=before.provider.settings.name,
            upstream_model=before.upstream_model,
            failed=failed,
            status=outcome.status if isinstance(outcome, Answer) else None,
            started_at=self._ports.unix_time() - (now - began_at),
            duration_ms=round((now - began_at) * 1000, 3),
        )
        return Failover(replace(others[0], others=others[1:]), attempt, outcome)


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
