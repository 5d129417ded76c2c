"""Sends a request to a provider and, after a failure, to the next one, with regard to their credentials and their
health.

Invariants: another provider is proposed only if this one was unreachable, refused what another one may answer
(`refusals`), or gave an answer that failed before anything of it went to the client. If a request was sent and then the
connection broke or timed out, it may have been served and billed: it is not sent again, unless it generates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import random
from time import monotonic
from typing import ClassVar, Generic, TypeVar

from proxy.billing.attempts import may_be_billed
from proxy.billing.record import Attempt
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.credentials import Credential, CredentialPool, Use
from proxy.gateway.upstream.failures import NoCredentialError, NotSentError, OutOfConnectionsError, UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.refusals import REFUSALS, failure_of, may_be_answered_elsewhere, rest_s
from proxy.gateway.upstream.routing import Route

_log = logging.getLogger(__name__)

# Statuses that another credential may not get.
_ABOUT_CREDENTIALS = frozenset((401, 402, 403, 429))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failover:
    """An attempt that failed, and the provider that may be asked instead."""

    route: Route
    attempt: Attempt
    outcome: Answer | UpstreamFailedError
    """the result of the call if no other provider is asked"""

    def stays(self) -> Answer:
        """The result, since no other provider is asked. Raises UpstreamFailedError."""
        if isinstance(self.outcome, UpstreamFailedError):
            raise self.outcome
        return self.outcome


MayAsk = Callable[[Failover], bool]
"""called before another provider is asked; returns False if none may be asked"""


class ProviderCall(Generic[T]):
    """One request, sent to one provider after another, as its owner decides; and to the same provider with another
    credential, if it has several. A subclass sends the request: `T` is the type of its result, such as `Answer`."""

    GENERATES: ClassVar[bool] = True
    """the request makes the provider generate, so it may be billed even if it failed"""

    def __init__(self, route: Route, unix_time: Callable[[], float], tokens: int = 0) -> None:
        """`tokens`: the estimated tokens of the request, for the limits of credentials."""
        self.route = route
        self.use: Use | None = None
        """the use of the credential that was sent last; None: the provider has at most one"""
        self._unix_time = unix_time
        self._tokens = tokens
        self._tried: dict[Credential, int] = {}
        """the credentials that this request was refused with, each with the status"""
        self._asked_at = 0.0
        self._failures_before: int | None = 0  # of the provider, when it was asked; None: this request is counted

    def _send(self, provider: Provider, use: Use | None) -> Awaitable[Answer | T]:
        """Send the request. Raises UpstreamFailedError."""
        raise NotImplementedError

    async def _failure_in(self, answer: Answer) -> str | None:
        """Why an accepted answer failed although its status is a success; None: it did not."""
        return None

    async def _is_changed(self, answer: Answer) -> bool:
        """Whether the request was changed after this refusal, and is sent again to the same provider."""
        return False

    async def answered(self, may_ask: MayAsk) -> Answer | T:
        """Send the request to one provider after another, until one has an answer for the client. Raises
        UpstreamFailedError."""
        while isinstance(found := await self.ask(), Failover):
            if not may_ask(found):
                return found.stays()
            self.fail_over(found)
        return found

    async def ask(self) -> Answer | T | Failover:
        """Send the request to the current provider. Raises UpstreamFailedError."""
        began_at = self._asked_at = monotonic()
        while True:
            provider, use = self.route.provider, None
            health = provider.health
            if provider.pool is not None and (use := self._takes(provider.pool, began_at)) is None:
                return self._without_credential(provider.pool, began_at)
            health.asked(began_at)
            self._failures_before = health.failures
            try:
                found = await self._send(provider, use)
            except UpstreamFailedError as failure:
                return self._unanswered(began_at, failure)
            answer = found if isinstance(found, Answer) else None
            if answer is None or answer.status < 400:
                if answer is None or answer.status >= 300 or not self.GENERATES:
                    health.answered()  # else the end of the answer says whether it was one
                elif self.route.others and (other := await self._other_than(answer, began_at)) is not None:
                    return other
                if use is not None:
                    self._accepted(use)
                return found
            self._note(answer, provider, use)
            if use is not None and self._tries_another(use, answer):
                began_at = monotonic()
                continue
            if may_be_answered_elsewhere(failure_of(answer.status), provider.settings.failover_on):
                failed = "failed" if may_be_billed(answer.status) else "refused"
                if (other := self._failover(began_at, failed, answer)) is not None:
                    return other
            if answer.status == 429 or answer.status >= 500 or not await self._is_changed(answer):
                return answer
            began_at = monotonic()

    async def _other_than(self, answer: Answer, began_at: float) -> Failover | None:
        """Another provider, if this accepted answer failed before anything of it went to the client."""
        try:
            failed = await self._failure_in(answer)
        except BaseException:
            answer.close()
            raise
        other = None if failed is None else self._failover(began_at, failed, answer)
        if other is not None:
            self.ended(failed=True)
        return other

    def ended(self, *, failed: bool) -> None:
        """Record how the provider has answered. `failed`: with an empty or failed answer."""
        before, self._failures_before, health = self._failures_before, None, self.route.provider.health
        if failed and before is not None:
            health.failed(monotonic())
        elif before and health.failures == before:  # else it has failed others meanwhile
            health.answered()

    def fail_over(self, failover: Failover) -> None:
        """Use this provider next."""
        if isinstance(failover.outcome, Answer):
            failover.outcome.close()
        self.release(0)
        self.route, self.use, self._tried = failover.route, None, {}

    def release(self, tokens: int | None) -> None:
        """End the use of the credential. `tokens`: used by the request; None: as many as were reserved."""
        if self.use is not None:
            self.use.end(tokens)

    def _unanswered(self, began_at: float, failure: UpstreamFailedError) -> Failover:
        """The next provider after a request without an answer. Raises UpstreamFailedError if there is none."""
        if isinstance(failure, OutOfConnectionsError):
            raise failure  # says nothing about the provider, and another one could not be reached either
        self.route.provider.health.failed(monotonic())
        repeats = not self.GENERATES or isinstance(failure, NotSentError)
        other = self._failover(began_at, str(failure), failure) if repeats else None
        if other is None:
            raise failure
        return other

    def _note(self, answer: Answer, provider: Provider, use: Use | None) -> None:
        if provider.is_for_client:
            return
        now, health = monotonic(), provider.health
        if answer.status >= 500:
            health.failed(now)
        else:
            health.answered()
        rests_s = rest_s(answer.status, answer.head, self._unix_time())
        if not rests_s:
            return
        if use is not None and answer.status in _ABOUT_CREDENTIALS:
            if answer.status != 401:  # that one is rejected
                use.credential.rests(now, rests_s)
            rests_s = use.pool.rests_s(now)
        elif answer.status in _ABOUT_CREDENTIALS and answer.status != 429 and not health.away_s(now):
            _log.warning("provider %s: %s (%s)", provider.settings.name, REFUSALS[answer.status].why, answer.status)
        health.rests(now, rests_s)

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
        """An earlier 403 was about the credential, since another credential was accepted. A 403 that a client causes
        affects all credentials."""
        use.credential.accepted()
        for other, status in self._tried.items():
            if status == 403:
                self._reject(use.pool, other, status)

    def _reject(self, pool: CredentialPool, credential: Credential, status: int) -> None:
        now = monotonic()
        credential.rejected(
            now, status, others=any(not one.is_rejected for one in pool.credentials if one is not credential)
        )
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
            started_at=self._unix_time() - (now - began_at),
            duration_ms=round((now - began_at) * 1000, 3),
        )
        return Failover(replace(others[0], others=others[1:]), attempt, outcome)
