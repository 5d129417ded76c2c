"""The settings of the listeners for clients, for monitors and for the operators.

Invariant: without any way to sign in, the admin listener is off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.foundation.secret import Secret
from proxy.settings.fields import section, sections, setting, settings_section
from proxy.settings.kinds import host, size, texts, whole
from proxy.settings.operators import OPERATOR_NAME, OidcSettings, OperatorSettings, admin_secret, secure_url
from proxy.settings.urls import url

# Browsers send it in lower case; applications have schemes of their own: tauri://localhost, app://obsidian.md.
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[a-z0-9._-]+(?::[0-9]{1,5})?", re.ASCII)


@settings_section
class Listen:
    """The listener for clients."""

    host: str = setting(host(), "addresses to listen on", default="127.0.0.1")
    port: int = setting(whole(0, 65_535), "port to listen on; 0: any free port", default=8080)


@settings_section
class WorkerSettings:
    """The listener of a worker's health checks and metrics."""

    host: str = setting(host(), "addresses to listen on", default="127.0.0.1")
    port: int = setting(whole(0, 65_535), "port of /metrics, /healthz and /readyz; 0: any free port", default=8081)


# A place in a stream is looked for in all that is kept of it: 16 MiB take up to two seconds, in slices.
STREAM_BYTES_MAX = 16 << 20
# More memory would be wasted on streams that are rarely resumed.
STREAMS_BYTES_MAX = 64 << 30


@settings_section
class ResumeSettings:
    """Streams that a client can resume."""

    bytes_max: int = setting(
        size(65_536, STREAM_BYTES_MAX),
        "memory for one stream; of a longer stream, the last events are kept",
        default=4 << 20,
    )
    total_bytes_max: int = setting(
        size(65_536, STREAMS_BYTES_MAX),
        "memory of one process for all streams; when full, the first ended stream is dropped, or else the oldest",
        default=256 << 20,
    )
    minutes: int = setting(whole(1, 1440), "longest time that an ended stream is kept", default=10)
    address: str | None = setting(
        url(),
        "address at which proxies of other machines on the queue reach this proxy: `http://10.0.0.7:8080`; without "
        "it, streams of this machine can be resumed only at this machine",
        default=None,
    )


@settings_section
class CorsSettings:
    """Cross-origin requests of browsers."""

    origins: frozenset[str] = setting(
        texts(_ORIGIN, "`scheme://host` or `scheme://host:port` in lower case, or `*`"),
        "the origins whose pages may use the API with their own key; `*`: all",
    )


@settings_section
class AdminSettings:
    """The listener of the console and its APIs; see `proxy/console`."""

    host: str = setting(host(), "addresses of the admin listener", default="127.0.0.1")
    port: int = setting(whole(0, 65_535), "port of the admin listener; 0: any free port", default=8090)
    secret: Secret | None = setting(
        admin_secret(),
        "the sign-in secret of the operator `admin`, 32 characters or more; without it, `operators` and `oidc` the "
        "listener is off",
        default=None,
    )
    operators: Mapping[str, OperatorSettings] = setting(
        sections(OperatorSettings, OPERATOR_NAME, "1 to 64 of a-z 0-9 _ . @ -, not `admin`"),
        "other operators, by the name that the audit log shows",
        default_factory=dict,
        shown="none",
    )
    oidc: OidcSettings | None = setting(
        section(OidcSettings), "sign-in by an identity provider (OpenID Connect)", default=None, shown="off"
    )
    public_url: str | None = setting(
        secure_url(),
        "the console's address in browsers, needed for `oidc`: its redirect address is this and "
        "`/v1/session/oidc/callback`",
        default=None,
    )

    @property
    def is_on(self) -> bool:
        """Whether anybody can sign in."""
        return self.secret is not None or bool(self.operators) or self.oidc is not None
