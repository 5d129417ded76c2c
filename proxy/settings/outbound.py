"""The settings of connections to a provider: credentials, certificates, and an HTTP proxy.

Invariants: no setting turns off the verification of certificates. An HTTP proxy only opens tunnels (CONNECT): it sees
the host name, and nothing of a request to https://.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

from proxy.foundation.secret import Secret
from proxy.settings.faults import SettingsError
from proxy.settings.fields import TEXT, FieldPath, FieldType, section, setting, settings_section
from proxy.settings.kinds import VISIBLE, path_of, refuse_literal_password, secret, text, whole
from proxy.settings.models import PROVIDER_NAME, WEIGHT_MAX
from proxy.settings.variables import variable

_URL = "http://[user:password@]host:port or https://…"
# Above all limits that providers grant; a larger number is a typing error.
RPM_MAX, TPM_MAX, PARALLEL_MAX = 10**7, 10**10, 10**6
_FAILURE = re.compile(r"4\d\d|5xx|failed_answer", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}


@settings_section
class CredentialSettings:
    """One of several API keys of a provider. The limits apply to each process separately."""

    name: str = setting(
        text(PROVIDER_NAME, "1 to 64 of a-z 0-9 _ . -"),
        "the name of the key in entries and the log, which never show the key itself",
    )
    api_key: Secret = setting(secret(), "the API key")
    weight: int = setting(
        whole(1, WEIGHT_MAX), "the key's share of the requests, relative to the other keys", default=1
    )
    rpm: int | None = setting(
        whole(1, RPM_MAX), "most requests in a minute, in each process", default=None, shown="no limit"
    )
    tpm: int | None = setting(
        whole(1, TPM_MAX),
        "most tokens in a minute, in each process; until its usage is known, a request counts with its estimated "
        "prompt and its answer limit",
        default=None,
        shown="no limit",
    )
    parallel: int | None = setting(
        whole(1, PARALLEL_MAX), "most requests at once, in each process", default=None, shown="no limit"
    )


@settings_section
class TlsSettings:
    """Certificates in PEM files, which are read at start."""

    ca_file: Path | None = setting(
        path_of("file"), "the CA certificates to trust instead of the system's", default=None, shown="the system's"
    )
    cert_file: Path | None = setting(
        path_of("file"), "the client certificate to present, with its intermediate certificates", default=None
    )
    key_file: Path | None = setting(
        path_of("file"), "the private key of `cert_file`, without a passphrase", default=None, shown="in `cert_file`"
    )


@dataclass(frozen=True, slots=True)
class ForwardProxy:
    """An HTTP proxy that opens tunnels with CONNECT."""

    host: str
    port: int
    tls: bool
    """the connection to the proxy itself is encrypted"""
    credentials: Secret | None
    """`user:password`"""

    @property
    def url(self) -> str:
        """The URL of the HTTP proxy, without the credentials."""
        return f"{'https' if self.tls else 'http'}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @classmethod
    def of(cls, url: str) -> Self | None:
        """The proxy at this URL; None if the URL is not that of an HTTP proxy."""
        try:
            parts = urlsplit(url)
            default = _DEFAULT_PORTS[parts.scheme]
            port = default if parts.port is None else parts.port
        except (ValueError, KeyError):
            return None
        plain = parts.path in ("", "/") and not parts.query and not parts.fragment and "\\" not in url
        if not VISIBLE.fullmatch(url) or not plain or not parts.hostname or port == 0:
            return None
        return cls(parts.hostname, port, parts.scheme == "https", _credentials(parts))


def _credentials(parts: SplitResult) -> Secret | None:
    if parts.username is None:
        return None
    return Secret(f"{unquote(parts.username)}:{unquote(parts.password or '')}")


def failures() -> FieldType:
    """A list of a provider's failures, as texts."""
    description = "list of statuses from 400 to 499, `5xx` and `failed_answer`"

    def read(raw: object, at: FieldPath) -> frozenset[str]:
        given = [str(one) for one in raw] if isinstance(raw, list) else [""]
        if not all(map(_FAILURE.fullmatch, given)):
            raise at.wrong(f"must be a {description}")
        return frozenset(given)

    schema = {"type": "array", "items": {"type": ["integer", "string"]}}
    return FieldType(description, read, schema=schema)


def forward_proxy() -> FieldType:
    """The URL of an HTTP proxy, or the word `none` (None)."""

    def read(raw: object, at: FieldPath) -> ForwardProxy | None:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if value == "none":
            return None
        found = ForwardProxy.of(value)
        if found is None:
            raise at.wrong(f"must be `none`, or the URL of an HTTP proxy: {_URL}")
        refuse_literal_password(str(raw), at)
        return found

    return FieldType(f"`none`, or {_URL}", read, schema=TEXT)


@settings_section
class OutboundSettings:
    """How a server other than the providers' is reached."""

    tls: TlsSettings = setting(section(TlsSettings), "certificates; they are always verified", default=TlsSettings())
    proxy: ForwardProxy | None = setting(
        forward_proxy(),
        "the HTTP proxy to reach it through, by CONNECT",
        default=None,
        shown="`HTTPS_PROXY` of the environment, as for `providers`",
    )


def proxy_of_environment(base_url: str, env: Mapping[str, str]) -> ForwardProxy | None:
    """The proxy in `HTTPS_PROXY`, for a provider at https:// that is not in `NO_PROXY` and not on this machine. Raises
    SettingsError."""
    parts = urlsplit(base_url)
    excepted = (env.get("no_proxy") or env.get("NO_PROXY") or "").replace(",", " ").split()
    if parts.scheme != "https" or _is_direct(parts.hostname or "", excepted):
        return None
    given = ((name, variable(env, name)) for name in ("https_proxy", "HTTPS_PROXY"))
    name, value = next(((name, value) for name, value in given if value), ("", ""))
    if not value:
        return None
    found = ForwardProxy.of(value if "://" in value else f"http://{value}")
    if found is None:
        raise SettingsError(f"the environment variable {name} must be {_URL}; or write `none` here")
    return found


def _is_direct(host: str, excepted: list[str]) -> bool:
    """True if the host is in `excepted`: host names, including hosts below them; addresses; networks (10.0.0.0/8);
    `*`."""
    try:
        address = ip_address(host)
    except ValueError:
        names = [one.lower().removeprefix("*").removeprefix(".") for one in excepted]
        return host == "localhost" or any(name in ("", host) or host.endswith(f".{name}") for name in names)
    return address.is_loopback or any(one == "*" or _within(address, one) for one in excepted)


def _within(address: IPv4Address | IPv6Address, network: str) -> bool:
    try:
        return address in ip_network(network, strict=False)
    except ValueError:
        return False
