"""Every setting: its name, its default, its limits, and what it means.

Law: a setting exists here once; the file reader and docs/reference/settings.md are both made of these lines. All
values are frozen and checked. Adapters take the values they need, not these objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from proxy.foundation.secret import Secret
from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects import WORDS
from proxy.settings.admin import AdminSettings
from proxy.settings.kinds import (
    about,
    choice,
    duration,
    flag,
    flag_or_auto,
    host,
    path_of,
    pepper,
    place,
    policy,
    seconds,
    secret,
    section,
    sections,
    size,
    whole,
    words,
)
from proxy.settings.models import MODEL_NAME, PROVIDER_NAME, ModelSettings
from proxy.settings.sinks import SinkSettings
from proxy.settings.sinks import sinks as read_sinks
from proxy.settings.spending import (
    AlertSettings,
    BudgetSettings,
    IdempotencySettings,
    ReserveSettings,
)
from proxy.settings.traces import TracesSettings
from proxy.settings.urls import url

LEDGER_SCHEMES = ("postgresql",)
# As redis-py takes them; of several addresses, for Sentinel and Cluster, the list stands where the host does.
QUEUE_SCHEMES = (
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip
# One Redis thread carries 50,000 records a second; more streams than this help nobody.
SHARDS_MAX = 64

# No exchange lasts a day; a longer time is one in milliseconds.
DAY_S = 86_400.0
# Ten minutes: no service manager waits longer for a process to stop.
GRACE_S_MAX = 600.0
# Four times the output limit of any model of 2026.
DRAIN_TOKENS_MAX = 1_000_000
# A request is held in memory as a whole, several times over while it is read.
REQUEST_BYTES_MAX = 256 << 20
# A slot is a few hundred bytes of the progress table: a million of them is still a small file.
STREAMS_MAX = 1 << 20
# Six series for each, in each process: more than this belongs into SQL.
METRIC_KEYS_MAX = METRIC_PROJECTS_MAX = 1_000
# Below 16 MiB a short outage of the ledger would already stop the work; 1 TiB is a unit mistaken for another.
JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX = 16 << 20, 1 << 40


class OnClientLeave(StrEnum):
    """What becomes of the provider's stream when the client is gone."""

    CANCEL = "cancel"
    DRAIN = "drain"


class InjectUsage(StrEnum):
    """Whether the proxy asks for usage in streams whose client did not."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Durability(StrEnum):
    """What an entry of the journal survives from the moment it counts as written."""

    PROCESS = "process"
    POWER = "power"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where clients come in."""

    host: str = field(default="127.0.0.1", metadata=about(host(), "address to listen on"))
    port: int = field(default=8080, metadata=about(whole(0, 65_535), "port to listen on; 0: any free one"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Where a worker shows its health and its metrics."""

    host: str = field(default="127.0.0.1", metadata=about(host(), "address to listen on"))
    port: int = field(default=8081, metadata=about(whole(0, 65_535), "port of /metrics, /healthz and /readyz; 0: any"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """The local outbox."""

    bytes_max: int = field(
        default=1 << 30,
        metadata=about(
            size(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX),
            "largest size on disk; when it is reached, new requests get 503 and running streams finish",
        ),
    )
    durability: Durability = field(
        default=Durability.PROCESS,
        metadata=about(
            choice(Durability), "what an opened exchange survives: the end of the process, or a loss of power too"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How far a provider's stream is read on after its client left."""

    seconds: float = field(default=120.0, metadata=about(seconds(DAY_S), "longest time to read on"))
    tokens: int = field(
        default=8192, metadata=about(whole(1, DRAIN_TOKENS_MAX), "most generated tokens to read on for")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a provider may take. Seconds."""

    connect_s: float = field(default=10.0, metadata=about(seconds(DAY_S), "to be connected"))
    first_byte_s: float = field(
        default=120.0, metadata=about(seconds(DAY_S), "from the request sent to the first byte of the answer")
    )
    idle_s: float = field(default=120.0, metadata=about(seconds(DAY_S), "of silence within an answer"))
    total_s: float = field(default=3600.0, metadata=about(seconds(DAY_S), "for the whole exchange"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """One upstream API."""

    name: str
    base_url: str = field(
        metadata=about(url(), "what comes before `/chat/completions`, `/messages` and the like; a path prefix is kept"),
    )
    api_key: Secret | None = field(
        default=None,
        metadata=about(secret(), "the provider's key; without one, none is sent", default="none"),
    )
    dialects: tuple[str, ...] = field(
        default=("openai",),
        metadata=about(words(WORDS), "the wire languages it speaks: families, or single ones", default="`[openai]`"),
    )
    key_header: KeyHeader | None = field(
        default=None,
        metadata=about(choice(KeyHeader), "the header that takes the key", default="as the language has it"),
    )
    on_client_leave: OnClientLeave = field(
        default=OnClientLeave.CANCEL,
        metadata=about(
            choice(OnClientLeave),
            "`cancel` closes upstream at once and estimates; `drain` reads on for the reported usage, bounded",
        ),
    )
    drain: Drain = field(default=Drain(), metadata=about(section(Drain), "bounds of `drain`"))
    timeouts: Timeouts = field(default=Timeouts(), metadata=about(section(Timeouts), "all in seconds"))
    inject_usage: InjectUsage = field(
        default=InjectUsage.AUTO,
        metadata=about(
            choice(InjectUsage),
            "ask for usage in streams whose client did not; `auto` stops where the provider answers 400 or 422 to it",
        ),
    )
    heartbeat_s: float = field(
        default=0.0,
        metadata=about(seconds(DAY_S, zero=True), "of silence after which the client gets a comment; 0: off"),
    )
    cumulative: bool | None = field(
        default=None,
        metadata=about(
            flag_or_auto(), "whether each chunk repeats the text so far; `auto`: seen from the stream", default="auto"
        ),
    )
    bill: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(policy(), "what is billed in which situation, where it differs from the table", default="{}"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What /metrics says beyond what it always does."""

    keys_max: int = field(
        default=0,
        metadata=about(
            whole(0, METRIC_KEYS_MAX), "keys with series of their own, by id, the first ones seen; 0: none have"
        ),
    )
    projects_max: int = field(
        default=0,
        metadata=about(
            whole(0, METRIC_PROJECTS_MAX), "projects with series of their own, by id, the first ones seen; 0: none have"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set."""

    listen: Listen = field(default=Listen(), metadata=about(section(Listen), "where clients come in"))
    data_dir: Path = field(
        default=Path("data"),
        metadata=about(
            path_of("folder"), "where the journal is kept, and the ledger when it is SQLite", default="./data"
        ),
    )
    ledger: Secret | None = field(
        default=None,
        metadata=about(place("sqlite", *LEDGER_SCHEMES), "where the entries are kept", default="`sqlite`"),
    )
    """None: SQLite, in `data_dir`"""
    queue: Secret | None = field(
        default=None,
        metadata=about(place("local", *QUEUE_SCHEMES), "what carries records to the ledger", default="`local`"),
    )
    """None: the proxy's own process does"""
    queue_shards: int = field(
        default=1,
        metadata=about(whole(1, SHARDS_MAX), "streams that the queue is spread over; the same for all that share it"),
    )
    lease_s: float = field(
        default=30.0,
        metadata=about(
            seconds(DAY_S), "silence after which a proxy on the queue counts as dead: a worker settles its exchanges"
        ),
    )
    key_pepper: Secret | None = field(
        default=None,
        metadata=about(
            pepper(), "what keys are hashed with, for proxies that share a ledger", default="a file in `data_dir`"
        ),
    )
    key_lifetime_max: int | None = field(
        default=None, metadata=about(duration(), "longest lifetime that a key can be given", default="none")
    )
    """seconds"""
    reserve: ReserveSettings = field(
        default=ReserveSettings(), metadata=about(section(ReserveSettings), "what a request holds of its budgets")
    )
    budgets: BudgetSettings = field(
        default=BudgetSettings(), metadata=about(section(BudgetSettings), "what applies to every limited key")
    )
    idempotency: IdempotencySettings = field(
        default=IdempotencySettings(), metadata=about(section(IdempotencySettings), "requests that come twice")
    )
    alerts: AlertSettings = field(
        default=AlertSettings(), metadata=about(section(AlertSettings), "webhooks about budgets")
    )
    sinks: Mapping[str, SinkSettings] = field(
        default_factory=dict,
        metadata=about(read_sinks(), "servers that entries are pushed to", default="none"),
    )
    worker: WorkerSettings = field(
        default=WorkerSettings(), metadata=about(section(WorkerSettings), "`tokenweir worker`")
    )
    admin: AdminSettings = field(
        default=AdminSettings(), metadata=about(section(AdminSettings), "the console and its APIs")
    )
    metrics: MetricsSettings = field(
        default=MetricsSettings(), metadata=about(section(MetricsSettings), "series that are not always wanted")
    )
    traces: TracesSettings | None = field(
        default=None,
        metadata=about(section(TracesSettings), "spans for an OTLP collector; needs `tokenweir[otlp]`", default="off"),
    )
    journal: JournalSettings = field(
        default=JournalSettings(), metadata=about(section(JournalSettings), "the local outbox")
    )
    shutdown_grace_s: float = field(
        default=30.0,
        metadata=about(
            seconds(GRACE_S_MAX, zero=True), "how long running streams may go on after SIGTERM; the rest is cut"
        ),
    )
    write_stall_s: float = field(
        default=60.0, metadata=about(seconds(DAY_S), "how long a client may read nothing before it counts as gone")
    )
    request_bytes_max: int = field(
        default=16 << 20, metadata=about(size(1024, REQUEST_BYTES_MAX), "longest request body; a longer one gets 413")
    )
    streams_max: int = field(default=16_384, metadata=about(whole(1, STREAMS_MAX), "exchanges at once; more get 503"))
    allow_literal_secrets: bool = field(
        default=False, metadata=about(flag(), "let an `api_key` stand in the file itself")
    )
    providers: Mapping[str, ProviderSettings] = field(
        metadata=about(
            sections(ProviderSettings, PROVIDER_NAME, "name of a-z 0-9 _ . -, up to 64"), "the upstream APIs, by name"
        )
    )
    models: Mapping[str, ModelSettings] = field(
        metadata=about(
            sections(ModelSettings, MODEL_NAME, "model name of A-Z a-z 0-9 _ . : / @ + -, or *, or prefix/*"),
            "what clients may ask for; `*` passes any name on, `prefix/*` what follows the slash",
        )
    )
