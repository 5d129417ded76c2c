"""The settings of the listeners for clients and for monitors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from proxy.settings.kinds import about, host, texts, whole

# Browsers send it in lower case; applications have schemes of their own: tauri://localhost, app://obsidian.md.
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[a-z0-9._-]+(?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The listener for clients."""

    host: str = field(default="127.0.0.1", metadata=about(host(), "address to listen on"))
    port: int = field(default=8080, metadata=about(whole(0, 65_535), "port to listen on; 0: any free one"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The listener of a worker's health checks and metrics."""

    host: str = field(default="127.0.0.1", metadata=about(host(), "address to listen on"))
    port: int = field(default=8081, metadata=about(whole(0, 65_535), "port of /metrics, /healthz and /readyz; 0: any"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """Cross-origin requests of browsers."""

    origins: frozenset[str] = field(
        metadata=about(
            texts(_ORIGIN, "`scheme://host` or `scheme://host:port` in lower case, or `*`"),
            "the origins whose pages may use the API, with a key that they have; `*`: all",
        )
    )
