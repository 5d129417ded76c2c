"""The settings of the listeners for clients and for monitors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from proxy.settings.kinds import about, host, size, texts, whole
from proxy.settings.urls import url

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


# A place in a stream is looked for in all that is kept of it: 16 MiB take some 50 ms.
STREAM_BYTES_MAX = 16 << 20
# More is no memory to give to streams that nobody may want back.
STREAMS_BYTES_MAX = 64 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSettings:
    """Streams that a client can resume."""

    bytes_max: int = field(
        default=4 << 20,
        metadata=about(
            size(65_536, STREAM_BYTES_MAX), "memory for one stream; of a longer stream, the last events are kept"
        ),
    )
    total_bytes_max: int = field(
        default=256 << 20,
        metadata=about(
            size(65_536, STREAMS_BYTES_MAX),
            "memory of one process for all streams; when full, the first ended stream is dropped, or else the oldest",
        ),
    )
    minutes: int = field(default=10, metadata=about(whole(1, 1440), "longest time that an ended stream is kept"))
    address: str | None = field(
        default=None,
        metadata=about(
            url(),
            "address at which proxies of other machines on the queue reach this proxy: `http://10.0.0.7:8080`; without "
            "it, streams of this machine can be resumed only at this machine",
            default="none",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """Cross-origin requests of browsers."""

    origins: frozenset[str] = field(
        metadata=about(
            texts(_ORIGIN, "`scheme://host` or `scheme://host:port` in lower case, or `*`"),
            "the origins whose pages may use the API with their own key; `*`: all",
        )
    )
