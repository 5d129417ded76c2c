"""A configured provider: its origin, the heads of its requests, and what was learned from its answers.

Invariants: a request goes only to the configured origin; a secret is in its head only, and never shown.
Credentials of a cloud are added to a request just before it is sent, not kept with it, and fetched off the event loop.
A provider whose extra is not installed cannot be made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import NamedTuple, Protocol, Self
from urllib.parse import urlsplit

from msgspec import Struct

from proxy.foundation.header_names import HeaderNames
from proxy.gateway.upstream.credentials import Credential, CredentialPool
from proxy.gateway.upstream.health import Health
from proxy.gateway.upstream.tunnel import Egress
from proxy.http.credentials import ProviderCredential
from proxy.http.errors import JSON_TYPE
from proxy.http.headers import USER_AGENT, HeaderRules
from proxy.metering import dialects
from proxy.metering.dialect import Dialect, KeyHeader
from proxy.settings import ProviderSettings, SettingsError
from proxy.settings.provider_headers import HeaderSettings
from proxy.settings.providers import LaterUsage


class Authorization(Protocol):
    """Authorizes the requests of one provider."""

    async def authorized(self, request: bytes, *rest: bytes) -> bytes:
        """The request with its credentials. `rest`: further pieces of its body. Raises CredentialFailedError."""

    def is_revealed_by(self, body: bytes) -> bool:
        """True if `body` contains one of the credentials."""


def authorization_of(provider: ProviderSettings) -> Authorization | None:
    """The authorization of a provider; None: it takes an API key, or nothing. Raises SettingsError if an extra is
    missing, or a file cannot be used."""
    auth = provider.auth
    if auth is None:
        return None
    name = provider.name
    try:
        if auth.aws is not None:
            from proxy.gateway.upstream.cloud.aws import AwsAuthorization

            parts = urlsplit(provider.base_url)
            region = auth.aws.region_at(parts.hostname or "")
            assert region is not None, "checked with the settings"
            return AwsAuthorization(auth.aws, region, f"{parts.scheme}://{parts.netloc}", name)
        from proxy.gateway.upstream.cloud.google import GoogleAuthorization

        assert auth.google is not None, "checked with the settings"
        return GoogleAuthorization(auth.google, name)
    except ImportError as missing:
        kind, extra = ("aws", "bedrock") if auth.aws is not None else ("google", "vertex")
        raise SettingsError(
            f"providers.{name}.auth.{kind}: needs a package that is not installed ({missing.name}): "
            f"pip install 'tokenweir[{extra}]'"
        ) from None


# Prepared heads, per provider: paths may contain the name of a model, so there can be many.
HEADS_MAX = 256
# Models per provider that are known to refuse `stream_options`: their names can come from clients. An hour later the
# field is tried again: the provider may have been updated, or may have refused for another reason.
WITHOUT_USAGE_MAX = 256
WITHOUT_USAGE_S = 3600.0
# When a WebSocket is tried again at a provider that declined one.
WITHOUT_SOCKETS_S = 3600.0
# A shorter value of a configured header is not taken for a secret: it could be in any answer.
SECRET_BYTES_MIN = 16

_OPENROUTER = re.compile(r"(?:[a-z0-9-]+\.)?openrouter\.ai")
# Hosts that keep a record of each answer.
_RECORDING = re.compile(rf"{_OPENROUTER.pattern}|ai-gateway\.vercel\.sh")


class Origin(NamedTuple):
    """The address of a provider. `tls`: connect with TLS and verify the certificate for `host`."""

    host: str
    port: int
    tls: bool
    egress: Egress | None = None
    """the provider's TLS and proxy settings; None: the defaults"""
    socket: str = ""
    """path of a Unix socket to connect to instead"""


class TimeLimits(Struct, frozen=True):
    """The time limits of a provider, in seconds. `heartbeat_s` 0: no heartbeats."""

    first_byte_s: float
    """limit from the request's arrival to the answer's head, including the connection"""
    idle_s: float
    total_s: float
    write_stall_s: float
    drain_s: float
    heartbeat_s: float = 0.0


@dataclass(slots=True)
class Provider:
    """A configured provider, with the prepared parts of its requests."""

    settings: ProviderSettings
    origin: Origin
    limits: TimeLimits
    secret: bytes
    """the one API key; empty: none, or several in `pool`"""
    _host: str
    """the value of the header Host"""
    _base_path: str
    _fields: str
    header_rules: HeaderRules | None = None
    """None: only headers of the standard lists pass"""
    _heads: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _without_sockets: dict[str, float] = field(default_factory=dict)
    """dialects that the provider does not serve over a WebSocket → when one is tried again"""
    _without_usage: dict[str, float] = field(default_factory=dict)
    """upstream models that refused `stream_options` → when it is injected again (`inject_usage: auto`); oldest first"""
    health: Health = field(default_factory=Health)
    knows_usage_include: bool = False
    """True if requests get OpenRouter's member `usage`"""
    later: LaterUsage = LaterUsage.OFF
    """how the usage of an estimated exchange is requested afterwards; never `auto`"""
    pool: CredentialPool | None = None
    """several API keys; None: one or none"""
    authorization: Authorization | None = None
    """credentials of a cloud; None: the provider takes API keys"""
    is_for_client: bool = False
    """it gets a client's own credential: its answers count neither for the operator's credentials nor for its health"""

    @classmethod
    def of(cls, settings: ProviderSettings, *, write_stall_s: float) -> Self:
        """Create a provider from its settings. Raises SettingsError if a file cannot be used, or an extra is
        missing."""
        parts = urlsplit(settings.base_url)
        tls = parts.scheme == "https"
        origin = Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls, Egress.of(settings))
        secret = settings.api_key.reveal() if settings.api_key is not None else ""
        rules = _rules(settings.headers)
        fields = [
            f"Host: {parts.netloc}",
            "Accept-Encoding: identity",
            *_fixed_lines(settings.headers, rules),
        ]
        limits = TimeLimits(
            first_byte_s=settings.timeouts.connect_s + settings.timeouts.first_byte_s,
            idle_s=settings.timeouts.idle_s,
            total_s=settings.timeouts.total_s,
            write_stall_s=write_stall_s,
            drain_s=settings.drain.seconds,
            heartbeat_s=settings.heartbeat_s,
        )
        knows = settings.usage_include
        return cls(
            settings, origin, limits, secret.encode(), parts.netloc, parts.path, "\r\n".join(fields), rules,
            knows_usage_include=_OPENROUTER.fullmatch(origin.host) is not None if knows is None else knows,
            later=_later(settings.usage.later, origin.host),
            pool=CredentialPool.of(settings.name, settings.credentials),
            authorization=authorization_of(settings),
        )  # fmt: skip

    def for_client(self) -> Self:
        """This provider for requests with a client's own credential."""
        return replace(self, health=Health(), pool=None, is_for_client=True)

    def request(
        self, dialect: Dialect, path: str, body: list[bytes], more: str, own: ProviderCredential | None = None
    ) -> list[bytes]:
        """The bytes of a request, in pieces; the first one has the whole head. `path`: after the base URL; `body`: in
        pieces; `more`: further header lines, each with its CRLF; `own`: the client's credential, instead of all that is
        the operator's."""
        head = self._heads.get((dialect.name, path)) if own is None else self._client_head(dialect, path, own)
        if head is None:
            head = self._head(dialect, path)
            if len(self._heads) < HEADS_MAX:
                self._heads[dialect.name, path] = head
        if len(body) == 1:
            return [b"%b%bContent-Length: %d\r\n\r\n%b" % (head, more.encode("latin-1"), len(body[0]), body[0])]
        return [b"%b%bContent-Length: %d\r\n\r\n" % (head, more.encode("latin-1"), sum(map(len, body))), *body]

    def get(self, path: str, key_header: KeyHeader, more: str = "", *, instead_of: str = "") -> bytes:
        """The bytes of a request that is no exchange. `path`: after the base URL; `more`: as for `request`;
        `instead_of`: the end of the base URL that `path` replaces."""
        return self.bodiless("GET", path, key_header, more, instead_of=instead_of)

    def bodiless(
        self,
        method: str,
        path: str,
        key_header: KeyHeader,
        more: str = "",
        *,
        accepts: str = JSON_TYPE,
        instead_of: str = "",
        credential: str | None = None,
    ) -> bytes:
        """The bytes of a request without a body, that is no exchange. `credential`: its name, if there are several;
        default: one that is available now."""
        target = f"{method} {self._base_path.removesuffix(instead_of)}{path}"
        length = "" if method == "GET" else "Content-Length: 0\r\n"
        request = self._start(target, accepts, key_header) + f"{length}{more}\r\n".encode("latin-1")
        return self._authorized(request, key_header, credential)

    def posting(
        self, path: str, key_header: KeyHeader, more: str, body: Sequence[bytes], *, credential: str | None
    ) -> list[bytes]:
        """The bytes of a POST request that is no exchange, as those of `request`. `more`: further header lines, with
        the Content-Type."""
        head = self._start(f"POST {self._base_path}{path}", JSON_TYPE, key_header)
        head += f"Content-Length: {sum(map(len, body))}\r\n{more}\r\n".encode("latin-1")
        return [self._authorized(head, key_header, credential), *body]

    def _authorized(self, request: bytes, key_header: KeyHeader, credential: str | None) -> bytes:
        if self.pool is None:
            return request
        named = [one for one in self.pool.credentials if one.name == credential]
        used = named[0] if named else self.pool.least_resting(monotonic())
        return self.with_credential(key_header, request, used)

    def credential_now(self) -> str | None:
        """The name of a credential that is available now; None: there are not several."""
        return None if self.pool is None else self.pool.least_resting(monotonic()).name

    def _head(self, dialect: Dialect, path: str) -> bytes:
        return self._start(f"POST {self._base_path}{path}", dialect.accepts, dialect.key_header)

    def _client_head(self, dialect: Dialect, path: str, own: ProviderCredential) -> bytes:
        """The first lines of a head without the operator's credentials and headers, which may be credentials too."""
        assert self.authorization is None, "checked with the settings"
        agent = (
            "" if self.header_rules is not None and self.header_rules.agent_passes else f"User-Agent: {USER_AGENT}\r\n"
        )
        first = f"POST {self._base_path}{path} HTTP/1.1\r\nHost: {self._host}\r\nAccept-Encoding: identity\r\n"
        key_line = own.line(self.settings.key_header or dialect.key_header)
        return f"{first}{agent}Accept: {dialect.accepts}\r\n{key_line}".encode("latin-1")

    def _start(self, target: str, accepts: str, key_header: KeyHeader) -> bytes:
        """The first lines of a head. `key_header`: the header of the key, unless the settings name another."""
        lines = [f"{target} HTTP/1.1", self._fields, f"Accept: {accepts}"]
        if self.secret:
            lines.append(self._key_line(key_header, self.secret.decode()))
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")

    def with_credential(self, key_header: KeyHeader, request: bytes, credential: Credential) -> bytes:
        """Add a credential to a `request` of a provider with several API keys. `key_header`: as for `get`."""
        line, _, rest = request.partition(b"\r\n")
        return b"%b\r\n%b\r\n%b" % (line, self._key_line(key_header, credential.secret).encode("latin-1"), rest)

    def _key_line(self, key_header: KeyHeader, secret: str) -> str:
        header = self.settings.key_header or key_header
        return f"Authorization: Bearer {secret}" if header is KeyHeader.AUTHORIZATION else f"{header}: {secret}"

    def is_revealed_by(self, body: bytes) -> bool:
        """True if `body` contains a secret of the provider's requests."""
        if self.authorization is not None and self.authorization.is_revealed_by(body):
            return True
        keys = [self.secret] if self.pool is None else [one.secret.encode() for one in self.pool.credentials]
        fixed = (value.reveal().encode() for value in self.settings.headers.up.values())
        secrets = (*keys, *(one for one in fixed if len(one) >= SECRET_BYTES_MIN))
        return any(secret and secret in body for secret in secrets)

    def supports(self, dialect: dialects.Named) -> bool:
        """True if the provider accepts requests in this dialect."""
        return dialects.supports(self.settings.dialects, dialect)

    def injects(self, upstream_model: str, now: float) -> bool:
        """True if `include_usage` is to be added to streams whose client did not set it. `now`: by `time.monotonic`."""
        mode = self.settings.inject_usage
        return mode == "always" or (mode == "auto" and self._without_usage.get(upstream_model, 0.0) <= now)

    def speaks_sockets(self, dialect: Dialect, now: float) -> bool:
        """True if the provider may accept WebSockets in this dialect. `now`: by `time.monotonic`."""
        return self.supports(dialect) and self._without_sockets.get(dialect.name, 0.0) <= now

    def declined_sockets(self, dialect: str, now: float) -> None:
        """The provider serves no WebSocket at this dialect's path."""
        self._without_sockets[dialect] = now + WITHOUT_SOCKETS_S

    def accepted_only_without_usage(self, upstream_model: str, now: float) -> None:
        """The model refused a request with `include_usage`, and accepted the same request without it."""
        self._without_usage.pop(upstream_model, None)
        if len(self._without_usage) >= WITHOUT_USAGE_MAX:
            del self._without_usage[next(iter(self._without_usage))]
        self._without_usage[upstream_model] = now + WITHOUT_USAGE_S


def _later(setting: LaterUsage, host: str) -> LaterUsage:
    if setting is not LaterUsage.AUTO:
        return setting
    return LaterUsage.GENERATION if _RECORDING.fullmatch(host) else LaterUsage.STORED


def _rules(settings: HeaderSettings) -> HeaderRules | None:
    if settings == HeaderSettings():
        return None
    fixed = frozenset(name.lower() for name in settings.up)
    return HeaderRules(fixed, HeaderNames(settings.pass_up), HeaderNames(settings.pass_down))


def _fixed_lines(settings: HeaderSettings, rules: HeaderRules | None) -> list[str]:
    """The operator's headers, and the proxy's User-Agent unless the operator set one."""
    replaced = rules is not None and (rules.agent_passes or "user-agent" in rules.fixed)
    ours = [] if replaced else [f"User-Agent: {USER_AGENT}"]
    return [*ours, *(f"{name}: {value.reveal()}" for name, value in settings.up.items())]
