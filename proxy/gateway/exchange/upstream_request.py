"""The request to a provider, until the head of an answer, and who else may be asked.

Invariant: the target consists of the dialect's path, the route's model and the query names that the dialect lists; no
part of the client's path is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any
from urllib.parse import quote

from aiohttp import web

from proxy.billing.record import Attempt
from proxy.foundation.times import retry_after_s
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import NotSentError, OutOfConnectionsError, UpstreamFailedError
from proxy.gateway.upstream.health import Health
from proxy.gateway.upstream.routing import Route
from proxy.http.headers import upward
from proxy.http.request_body import CODECS
from proxy.metering.answer_cost.request import MEMBER
from proxy.metering.dialect import NAME, Dialect
from proxy.metering.meter import StreamMeter
from proxy.metering.request import RequestFacts
from proxy.metering.wire.framing import Framing

# An error answer is read whole before it is passed on; a longer one is replaced by our own.
ERROR_BYTES_MAX = 256 * 1024
# How servers refuse a field that they do not know; those that validate against a schema say 422.
_UNKNOWN_FIELD = (400, 422)

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
    without `include_usage` if that was rejected.

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
    ) -> None:
        self._request = request
        self._dialect = dialect
        self._facts = facts
        self._document = document
        self.route = route
        self._ports = ports
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

    def stream_meter(self, framing: Framing) -> StreamMeter:
        """The meter of a streamed answer."""
        route = self.route
        counter = None if route.counter is None else route.counter()
        return self._dialect.stream_meter(framing, route.provider.settings.cumulative, counter)

    def wire(self) -> bytes:
        """The bytes of the request."""
        model = self.route.upstream_model
        document = self._dialect.upstream_document(self._document, upstream_model=model, inject_usage=self.injected)
        if MEMBER in document and self._dialect.cost_path and not self.route.provider.knows_usage_include:
            del document[MEMBER]
        content_type, body = CODECS[self._dialect.request_body].write(document)
        provider = self.route.provider
        headers = upward(self._request.headers, self._dialect.headers_up, provider.header_rules)
        path = target(self._dialect, model, self._request.raw_path)
        return provider.request(self._dialect, path, body, f"Content-Type: {content_type}\r\n{headers}")

    def forget(self) -> None:
        """A provider has accepted: the request is not sent again, and need not be kept as long as its answer takes."""
        self._document = {}

    async def ask(self, wire: bytes) -> Answer | Failover:
        """Send `wire` to the current provider. Raises UpstreamFailedError."""
        while True:
            provider = self.route.provider
            began_at = monotonic()
            provider.health.asked(began_at)
            try:
                answer = await self._ports.upstream.ask(provider, wire)
            except OutOfConnectionsError:
                raise  # says nothing about the provider, and another one could not be reached either
            except NotSentError as failure:
                provider.health.failed(monotonic())
                if (other := self._failover(began_at, str(failure), failure)) is None:
                    raise
                return other
            except UpstreamFailedError:
                provider.health.failed(monotonic())
                raise
            status = answer.status
            if status < 400:
                provider.health.answered()
                if self._refused_injected:
                    provider.accepted_only_without_usage(self.route.upstream_model, monotonic())
                return answer
            self._note(answer, provider.health)
            if status == 429 or status >= 500:
                return self._failover(began_at, "refused" if status == 429 else "failed", answer) or answer
            if not await self._refused_for_usage(answer):
                return answer
            wire = self.wire()

    def fail_over(self, failover: Failover) -> None:
        """Ask that provider next."""
        if isinstance(failover.outcome, Answer):
            failover.outcome.close()
        self.route = failover.route
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

    def _note(self, answer: Answer, health: Health) -> None:
        now = monotonic()
        if answer.status >= 500:
            health.failed(now)
        else:
            health.answered()
        if answer.status in (429, 503):
            rest_s = retry_after_s(answer.head.header("retry-after"), self._ports.unix_time())
            if rest_s is not None:
                health.rests(now, rest_s)

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
        path = path.replace(NAME, quote(upstream_model, safe="/:@+"))
    if dialect.query and "?" in raw_path:
        parts = raw_path.partition("?")[2].partition("#")[0].split("&")
        passed = [part for part in parts if _passes(part, dialect.query)]
        path += "?" + "&".join(passed) if passed else ""
    return path


def _passes(part: str, names: tuple[str, ...]) -> bool:
    name, _, value = part.partition("=")
    return part in names or (name in names and _VALUE.fullmatch(value) is not None)
