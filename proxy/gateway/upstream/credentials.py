"""Several API keys of one provider: which one a request uses, and which ones wait.

Invariants: pure; times by `time.monotonic` and randomness are passed in. Within any 60 s, a credential gets at most
`rpm` requests and reserves at most `tpm` tokens, and at most `parallel` of its requests run at once, all of this in one
process. A paused credential gets no request. No secret is shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Self

from proxy.foundation.outage import Outage, OutageLog
from proxy.gateway.upstream.health import REST_S_MAX
from proxy.gateway.upstream.refusals import REJECTED_REST_S
from proxy.settings import CredentialSettings

WINDOW_S = 60.0
# The wait for a credential at its `parallel` limit: it is unknown when its next request ends.
AGAIN_S = 1.0


class _Second:
    """The requests that began within one second."""

    __slots__ = ("at", "requests", "tokens")

    def __init__(self, at: int) -> None:
        self.at = at
        self.requests = 0
        self.tokens = 0


class Credential:
    """One API key, with the requests that use it now."""

    def __init__(self, settings: CredentialSettings, outage: Outage) -> None:
        """`outage`: begins when the provider rejects the credential."""
        self.name = settings.name
        self.secret = settings.api_key.reveal()
        self.weight = settings.weight
        self._rpm, self._tpm = settings.rpm, settings.tpm
        self._parallel = inf if settings.parallel is None else settings.parallel
        self._outage = outage
        self._running = 0
        self._rests_until = 0.0
        self._seconds: deque[_Second] = deque()  # those in the window, oldest first
        self._requests = 0  # requests and tokens in the window
        self._tokens = 0

    def away_s(self, now: float, tokens: int) -> float:
        """Seconds until the credential can serve a request of `tokens`; 0: now. A request larger than `tpm` gets a
        whole window."""
        self._forget(now)
        away = self.rests_s(now)
        if self._running >= self._parallel:
            away = max(away, AGAIN_S)
        if self._rpm is not None and self._requests >= self._rpm:
            away = max(away, self._free_in(now, self._requests - self._rpm + 1, requests=True))
        if self._tpm is not None and (over := self._tokens + min(tokens, self._tpm) - self._tpm) > 0:
            away = max(away, self._free_in(now, over, requests=False))
        return away

    def rests_s(self, now: float) -> float:
        """Seconds for which the credential is paused, after a rate limit or a rejection; 0: it is not."""
        return max(0.0, self._rests_until - now)

    def take(self, now: float, tokens: int) -> tuple[_Second, int]:
        """Count a request that begins. Returns its second, and the reserved tokens."""
        if not self._seconds or self._seconds[-1].at != int(now):
            self._seconds.append(_Second(int(now)))
        second, reserved = self._seconds[-1], tokens if self._tpm is None else min(tokens, self._tpm)
        self._running += 1
        self._requests += 1
        second.requests += 1
        self._count(second, reserved)
        return second, reserved

    def end(self, second: _Second, more_tokens: int) -> None:
        """A request has ended. `more_tokens`: the tokens used minus those reserved."""
        self._running -= 1
        if self._seconds and second.at >= self._seconds[0].at:
            self._count(second, more_tokens)

    def rests(self, now: float, for_s: float) -> None:
        """Pause the credential: the provider limits it for `for_s` seconds."""
        self._rests_until = max(self._rests_until, now + min(for_s, REST_S_MAX))

    def rejected(self, now: float, status: int, *, others: bool = True) -> None:
        """The provider rejected the credential. `others`: there are others that it accepts."""
        self.rests(now, REJECTED_REST_S)
        left = "other credentials are used" if others else "it has no other credential"
        self._outage.began(PermissionError(f"the provider rejects it ({status}); {left}"))

    def accepted(self) -> None:
        """The provider accepted the credential."""
        self._outage.over()

    @property
    def is_rejected(self) -> bool:
        """True if the provider's last answer rejected the credential."""
        return self._outage.lasts

    def _count(self, second: _Second, tokens: int) -> None:
        second.tokens += tokens
        self._tokens += tokens

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0].at + 1 <= now - WINDOW_S:
            gone = self._seconds.popleft()
            self._requests -= gone.requests
            self._tokens -= gone.tokens

    def _free_in(self, now: float, needed: int, *, requests: bool) -> float:
        """Seconds until `needed` requests or tokens have left the window."""
        for second in self._seconds:
            needed -= second.requests if requests else second.tokens
            if needed <= 0:
                return max(second.at + 1 + WINDOW_S - now, 0.001)
        return WINDOW_S


class Use:
    """One request with a credential. Call `end` once."""

    __slots__ = ("_ended", "_reserved", "_second", "credential", "pool")

    def __init__(self, pool: CredentialPool, credential: Credential, now: float, tokens: int) -> None:
        self.pool = pool
        self.credential = credential
        self._second, self._reserved = credential.take(now, tokens)
        self._ended = False

    def end(self, tokens: int | None) -> None:
        """The request has used `tokens` (None: as many as reserved). Calls after the first one are ignored."""
        if not self._ended:
            self._ended = True
            self.credential.end(self._second, 0 if tokens is None else tokens - self._reserved)


class CredentialPool:
    """The credentials of one provider."""

    def __init__(self, credentials: Sequence[Credential]) -> None:
        self.credentials = tuple(credentials)

    @classmethod
    def of(cls, provider: str, settings: Sequence[CredentialSettings]) -> Self | None:
        """The pool of a provider; None: it has one API key, or none."""
        if not settings:
            return None
        return cls(
            [Credential(one, Outage(OutageLog(f"credential {one.name} of provider {provider}"))) for one in settings]
        )

    def take(
        self, now: float, tokens: int, chance: Callable[[], float], tried: Collection[Credential] = ()
    ) -> Use | None:
        """A credential drawn by weight among those that are available now and were not tried; None: there is none.
        `chance`: returns a random number from [0, 1)."""
        free = [one for one in self.credentials if one not in tried and not one.away_s(now, tokens)]
        if not free:
            return None
        point = chance() * sum(one.weight for one in free)
        for one in free:
            point -= one.weight
            if point < 0:
                return Use(self, one, now, tokens)
        return Use(self, free[-1], now, tokens)

    def away_s(self, now: float, tokens: int, tried: Collection[Credential] = ()) -> float:
        """Seconds until a credential that was not tried is available; 0: now; infinite: all were tried."""
        return min((one.away_s(now, tokens) for one in self.credentials if one not in tried), default=inf)

    def least_resting(self, now: float) -> Credential:
        """The credential for a request that counts for no limit."""
        return min(self.credentials, key=lambda one: one.rests_s(now))

    def rests_s(self, now: float) -> float:
        """Seconds until the first pause ends; 0: a credential is not paused."""
        return min(one.rests_s(now) for one in self.credentials)

    @property
    def all_rejected(self) -> bool:
        """True if the provider rejected every credential."""
        return all(one.is_rejected for one in self.credentials)
