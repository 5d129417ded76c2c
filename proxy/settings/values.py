"""Every setting: its name, its default, its limits and its meaning.

Invariants: a setting is declared once; the file reader and docs/reference/settings.md are both generated from these
declarations. All values are frozen and checked. Adapters take the values they need, not these objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from proxy.billing.pricing.rules import PriceRule
from proxy.foundation.secret import Secret
from proxy.settings.dimensions import DimensionSettings
from proxy.settings.estimates import EstimateSettings
from proxy.settings.fields import section, sections, setting, settings_section
from proxy.settings.identities import IDENTITIES, IdentitySettings
from proxy.settings.kinds import (
    choice,
    duration,
    flag,
    host,
    local_or_url,
    path_of,
    pepper,
    seconds,
    size,
    whole,
)
from proxy.settings.listeners import AdminSettings, CorsSettings, Listen, ResumeSettings, WorkerSettings
from proxy.settings.models import MODEL_NAME, PROVIDER_NAME, ModelSettings
from proxy.settings.price_refresh import PricesSettings
from proxy.settings.price_rules import PRICE_RULES
from proxy.settings.providers import DAY_S, ProviderSettings
from proxy.settings.sinks import SinkSettings
from proxy.settings.sinks import sinks as read_sinks
from proxy.settings.spending import (
    AlertSettings,
    BillingSettings,
    BudgetSettings,
    IdempotencySettings,
    ReserveSettings,
)
from proxy.settings.statement import StatementSettings
from proxy.settings.traces import TracesSettings

LEDGER_SCHEMES = ("postgresql", "postgres")
# Those of redis-py; for Sentinel and Cluster, a list of addresses takes the place of the host.
QUEUE_SCHEMES = (
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip
# One Redis thread carries 50,000 records a second; more streams do not help.
SHARDS_MAX = 64

# No service manager waits longer than ten minutes for a process to stop.
GRACE_S_MAX = 600.0
# A request is in memory as a whole, several times over while it is parsed. The default fits what providers take: of
# OpenAI 50 MB of PDF in a request (in base64: 63.6 MiB), images of 50 MB and audio of 25 MB; of Anthropic 32 MB.
# Gemini's 100 MB is for those who raise it.
REQUEST_BYTES_MAX = 256 << 20
# A slot of the progress table is a few hundred bytes: a million of them is still a small file.
EXCHANGES_MAX = 1 << 20
# Six series each, in each process; for more, query the ledger.
METRIC_KEYS_MAX = METRIC_PROJECTS_MAX = 1_000
# Ledgers archive months; what is older than a day is restored from a backup.
KEEP_SETTLED_S_MAX = 86_400.0
# Below 16 MiB a short outage of the ledger would fill the journal; 1 TiB or more is probably a wrong unit.
JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX = 16 << 20, 1 << 40


class LogFormat(StrEnum):
    """The form of a line of the log."""

    TEXT = "text"
    JSON = "json"


class Durability(StrEnum):
    """The failure that an acknowledged journal record survives: of the process, or of the power supply."""

    PROCESS = "process"
    POWER = "power"


@settings_section
class JournalSettings:
    """The journal: records that are not in the ledger yet."""

    bytes_max: int = setting(
        size(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX),
        "largest size on disk; at this size new requests get 503 and running streams finish",
        default=1 << 30,
    )
    keep_settled_s: float = setting(
        seconds(KEEP_SETTLED_S_MAX, zero=True),
        "how long records stay after the ledger has confirmed them, to be sent again if the ledger loses them (a "
        "failover to a standby that lags); less if `bytes_max` or the disk is full; 0: off",
        default=3600.0,
    )
    durability: Durability = setting(
        choice(Durability),
        "failure that a journaled exchange survives: a crash of the process, or also a power loss",
        default=Durability.PROCESS,
    )


@settings_section
class MetricsSettings:
    """Where `/metrics` is, and its optional series."""

    port: int | None = setting(
        whole(0, 65_535),
        "port of a listener for `/metrics`, `/healthz` and `/readyz` alone; the clients' port then has no `/metrics`",
        default=None,
        shown="the clients' port",
    )
    host: str = setting(host(), "addresses of that listener", default="127.0.0.1")
    keys_max: int = setting(
        whole(0, METRIC_KEYS_MAX),
        "number of keys with their own series, by id, first come first served; 0: none",
        default=0,
    )
    projects_max: int = setting(
        whole(0, METRIC_PROJECTS_MAX),
        "number of projects with their own series, by id, first come first served; 0: none",
        default=0,
    )


@settings_section
class LogSettings:
    """The log, on standard error."""

    format: LogFormat = setting(choice(LogFormat), "lines of text, or one JSON object a line", default=LogFormat.TEXT)
    exchanges: bool = setting(flag(), "one line for each ended exchange", default=True)


@settings_section
class Settings:
    """All settings."""

    listen: Listen = setting(section(Listen), "the listener for clients", default=Listen())
    cors: CorsSettings | None = setting(
        section(CorsSettings), "pages of other origins that may use the API in browsers", default=None, shown="off"
    )
    resume: ResumeSettings | None = setting(
        section(ResumeSettings),
        "keeps streams in memory, so that a client can resume one after a disconnect",
        default=None,
        shown="off",
    )
    key_info: bool = setting(
        flag(),
        "clients can read the spend and the remaining budget of their own key: `/v1/me`, OpenRouter's `/key`",
        default=True,
    )
    key_rotation: bool = setting(
        flag(),
        "holders can replace the secret of their own key: `POST /v1/me/rotate`; a thief of the secret can, too",
        default=False,
    )
    hide_providers: bool = setting(
        flag(),
        "the admin API, `GET /v1/exchanges/{id}` and lists of models do not show keys the provider of a request, its "
        "model, its raw usage and its errors",
        default=False,
    )
    budget_headers: bool = setting(
        flag(),
        "answers to keys with a budget have headers with what is left of the tightest one, at one more call to the "
        "budget store",
        default=False,
    )
    data_dir: Path = setting(
        path_of("folder"),
        "folder of the journal, and of the ledger if it is SQLite",
        default=Path("data"),
        shown="./data",
    )
    ledger: Secret | None = setting(
        local_or_url("sqlite", *LEDGER_SCHEMES), "the database of the billing entries", default=None, shown="`sqlite`"
    )
    """None: SQLite, in `data_dir`"""
    queue: Secret | None = setting(
        local_or_url("local", *QUEUE_SCHEMES),
        "the queue between proxies and workers; `local`: the proxy writes the ledger itself",
        default=None,
        shown="`local`",
    )
    """None: `local`"""
    queue_shards: int = setting(
        whole(1, SHARDS_MAX),
        "number of Redis streams of the queue and of shards of the ledger, which workers divide among themselves; "
        "the same on every proxy and worker",
        default=1,
    )
    lease_s: float = setting(
        seconds(DAY_S),
        "time without a heartbeat after which a proxy counts as dead and a worker settles its exchanges",
        default=30.0,
    )
    key_pepper: Secret | None = setting(
        pepper(),
        "the secret that keys are hashed with; required if `ledger` is Postgres",
        default=None,
        shown="a file in `data_dir`",
    )
    dimensions: DimensionSettings = setting(
        section(DimensionSettings), "end users, sessions, runs and tags of requests", default=DimensionSettings()
    )
    key_lifetime_max: int | None = setting(duration(), "longest lifetime of a key", default=None)
    """seconds"""
    reserve: ReserveSettings = setting(
        section(ReserveSettings), "the reservation of a request in its budgets", default=ReserveSettings()
    )
    budgets: BudgetSettings = setting(
        section(BudgetSettings), "settings of all keys with limits", default=BudgetSettings()
    )
    billing: BillingSettings = setting(section(BillingSettings), "monthly statements", default=BillingSettings())
    statement: StatementSettings = setting(
        section(StatementSettings),
        "the seller, the customers and the terms on statements; a closed month keeps those of its closing",
        default=StatementSettings(),
    )
    estimates: EstimateSettings = setting(
        section(EstimateSettings), "estimates of unreported usage", default=EstimateSettings()
    )
    idempotency: IdempotencySettings = setting(
        section(IdempotencySettings), "repeated requests", default=IdempotencySettings()
    )
    alerts: AlertSettings = setting(section(AlertSettings), "webhooks about budgets", default=AlertSettings())
    sinks: Mapping[str, SinkSettings] = setting(
        read_sinks(), "billing systems that receive the entries", default_factory=dict, shown="none"
    )
    worker: WorkerSettings = setting(
        section(WorkerSettings), "the listener of `tokenweir worker`", default=WorkerSettings()
    )
    admin: AdminSettings = setting(section(AdminSettings), "the console and its APIs", default=AdminSettings())
    identities: Mapping[str, IdentitySettings] = setting(
        IDENTITIES, "clients that send tokens of an issuer (JWT) in place of a key", default_factory=dict, shown="none"
    )
    metrics: MetricsSettings = setting(
        section(MetricsSettings), "optional series of /metrics", default=MetricsSettings()
    )
    log: LogSettings = setting(section(LogSettings), "the log, on standard error", default=LogSettings())
    traces: TracesSettings | None = setting(
        section(TracesSettings),
        "spans to an OTLP collector; needs the extra `tokenweir[otlp]`",
        default=None,
        shown="off",
    )
    journal: JournalSettings = setting(
        section(JournalSettings), "the file of records that are not in the ledger yet", default=JournalSettings()
    )
    drain_delay_s: float = setting(
        seconds(GRACE_S_MAX, zero=True),
        "how long requests are still accepted after SIGTERM, while `/readyz` answers 503, so that load balancers stop "
        "sending some; then `shutdown_grace_s` begins",
        default=0.0,
    )
    shutdown_grace_s: float = setting(
        seconds(GRACE_S_MAX, zero=True),
        "how long running streams may continue after SIGTERM; then they are cut",
        default=30.0,
    )
    write_stall_s: float = setting(
        seconds(DAY_S), "how long a client may read nothing before it counts as disconnected", default=60.0
    )
    request_bytes_max: int = setting(
        size(1024, REQUEST_BYTES_MAX), "largest request body; a larger one gets 413", default=64 << 20
    )
    exchanges_max: int = setting(
        whole(1, EXCHANGES_MAX),
        "largest number of exchanges at once; more get 503",
        default=16_384,
        formerly="streams_max",
    )
    websockets_per_key_max: int | None = setting(
        whole(1, EXCHANGES_MAX),
        "largest number of WebSockets of one key in one process; more get 429",
        default=None,
        shown="a quarter of `exchanges_max`",
    )
    allow_literal_secrets: bool = setting(flag(), "allow secrets to be written in the file itself", default=False)
    providers: Mapping[str, ProviderSettings] = setting(
        sections(ProviderSettings, PROVIDER_NAME, "1 to 64 of a-z 0-9 _ . -"), "the upstream APIs, by name"
    )
    models: Mapping[str, ModelSettings] = setting(
        sections(ModelSettings, MODEL_NAME, "1 to 200 of A-Z a-z 0-9 _ . : / @ + -, or *, or prefix/*"),
        "the models that clients may request; `*` passes any name upstream, `prefix/*` the part after the slash",
    )
    prices: PricesSettings = setting(section(PricesSettings), "the built-in price book", default=PricesSettings())
    price_rules: Mapping[str, PriceRule] = setting(
        PRICE_RULES,
        "changes of price lists for some requests: by who pays, model, provider, date and hour",
        default_factory=dict,
        shown="none",
    )
