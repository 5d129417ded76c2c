"""Every setting: its name, its default, its limits and its meaning.

Invariants: a setting is declared once; the file reader and docs/reference/settings.md are both generated from these
declarations. All values are frozen and checked. Adapters take the values they need, not these objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from proxy.billing.pricing.rules import PriceRule
from proxy.foundation.secret import Secret
from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects import DIALECT_NAMES
from proxy.metering.stored_objects import OBJECT_APIS
from proxy.settings.cloud_auth import AuthSettings
from proxy.settings.dimensions import DimensionSettings
from proxy.settings.estimates import EstimateSettings
from proxy.settings.fields import section, sections, setting, settings_section, several
from proxy.settings.identities import IDENTITIES, IdentitySettings
from proxy.settings.kinds import (
    choice,
    choices,
    duration,
    flag,
    flag_or_auto,
    host,
    local_or_url,
    path_of,
    pepper,
    policy,
    seconds,
    secret,
    size,
    texts,
    whole,
)
from proxy.settings.listeners import AdminSettings, CorsSettings, Listen, ResumeSettings, WorkerSettings
from proxy.settings.models import MODEL_NAME, PROVIDER_NAME, ModelSettings
from proxy.settings.outbound import CredentialSettings, ForwardProxy, TlsSettings, failures, forward_proxy
from proxy.settings.price_refresh import PricesSettings
from proxy.settings.price_rules import PRICE_RULES
from proxy.settings.provider_headers import HeaderSettings
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
from proxy.settings.urls import url

LEDGER_SCHEMES = ("postgresql", "postgres")
# Those of redis-py; for Sentinel and Cluster, a list of addresses takes the place of the host.
QUEUE_SCHEMES = (
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip
# A path in a usage object, with a word after it if it is one of a word.
_USAGE_PATH = re.compile(r"[A-Za-z][A-Za-z0-9_.=-]{0,199}", re.ASCII)
# One Redis thread carries 50,000 records a second; more streams do not help.
SHARDS_MAX = 64

# No exchange takes a day; a larger number is probably in milliseconds.
DAY_S = 86_400.0
# No service manager waits longer than ten minutes for a process to stop.
GRACE_S_MAX = 600.0
# Four times the output limit of any model of 2026.
DRAIN_TOKENS_MAX = 1_000_000
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


class OnClientDisconnect(StrEnum):
    """The disconnect policy: handling of the provider's stream after the client has disconnected."""

    CANCEL = "cancel"
    DRAIN = "drain"


class InjectUsage(StrEnum):
    """When the proxy requests usage in streams whose client did not request it."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Refuted(StrEnum):
    """Billing of a reported count that no tokenizer can have for the text."""

    AS_REPORTED = "as_reported"
    ESTIMATE = "estimate"


class LaterUsage(StrEnum):
    """How a provider is asked for the usage of an exchange that has ended with an estimate."""

    AUTO = "auto"
    GENERATION = "generation"
    STORED = "stored"
    OFF = "off"


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
class Drain:
    """Bounds on reading a provider's stream after the client disconnected."""

    seconds: float = setting(seconds(DAY_S), "longest time to keep reading", default=120.0)
    tokens: int = setting(
        whole(1, DRAIN_TOKENS_MAX), "largest number of generated tokens to keep reading", default=8192
    )


@settings_section
class Timeouts:
    """Timeouts of requests to a provider. Seconds."""

    connect_s: float = setting(seconds(DAY_S), "to open a connection", default=10.0)
    first_byte_s: float = setting(
        seconds(DAY_S), "from the end of the request to the first byte of the answer", default=120.0
    )
    first_event_s: float = setting(
        seconds(DAY_S, zero=True),
        "longest wait for the first event of an accepted answer before the client gets any of it: if the event is an "
        "error, the model's next provider is tried; without a next one, and with 0, there is no wait",
        default=5.0,
    )
    idle_s: float = setting(seconds(DAY_S), "between two parts of an answer", default=120.0)
    total_s: float = setting(seconds(DAY_S), "for the whole exchange", default=3600.0)
    background_s: float = setting(
        seconds(DAY_S),
        "for an answer that is made in the background; then the provider is asked to stop",
        default=DAY_S,
    )


@settings_section
class UsageSettings:
    """How the provider's usage is taken."""

    refuted: Refuted = setting(
        choice(Refuted),
        "a count that the answer contradicts, such as no tokens for a page of text: billed as reported, or estimated; "
        "entries show both numbers (`refuted`) in any case",
        default=Refuted.AS_REPORTED,
    )
    later: LaterUsage = setting(
        choice(LaterUsage),
        "where the usage of an estimated exchange is requested afterwards: in the provider's records of its answers "
        "(`GET /generation?id=`), or in the stored answer of responses and interactions; `auto`: the records at "
        "openrouter.ai and ai-gateway.vercel.sh, stored answers elsewhere",
        default=LaterUsage.AUTO,
    )


@settings_section
class ProviderSettings:
    """One upstream API."""

    name: str
    base_url: str = setting(
        url(), "the URL up to `/chat/completions`, `/messages` or the like, such as `https://api.openai.com/v1`"
    )
    api_key: Secret | None = setting(secret(), "the provider's API key; without it, requests carry none", default=None)
    credentials: tuple[CredentialSettings, ...] = setting(
        several(CredentialSettings, "list of fields"),
        "several API keys, instead of `api_key`: drawn by weight among those within their limits; a rejected "
        "key is paused, and another key is tried",
        default=(),
        shown="the one `api_key`",
    )
    auth: AuthSettings | None = setting(
        section(AuthSettings),
        "credentials of a cloud, instead of `api_key`: `{aws: {}}` or `{google: {}}`",
        default=None,
        shown="the API key",
    )
    admin_key: Secret | None = setting(
        secret(),
        "an admin key of OpenAI or Anthropic, for reading usage and costs with `tokenweir reconcile --pull`; give "
        "it to that command only",
        default=None,
    )
    admin_url: str | None = setting(
        url(),
        "the URL up to `/organization/usage` or `/organizations/usage_report`, if `base_url` is a gateway's",
        default=None,
        shown="`base_url`, at api.openai.com and api.anthropic.com",
    )
    dialects: tuple[str, ...] = setting(
        choices((*DIALECT_NAMES, *(api.name for api in OBJECT_APIS))),
        "supported dialects: families, or single ones",
        default=("openai",),
        shown="`[openai]`",
    )
    key_header: KeyHeader | None = setting(
        choice(KeyHeader), "the header that carries the key", default=None, shown="the dialect's own"
    )
    byok: bool = setting(
        flag(),
        "use clients' own credentials for keys that are marked so (`keys create --byok`); only for a provider that "
        "checks credentials itself: such requests have neither the provider's key nor the headers of `headers.up`",
        default=False,
    )
    headers: HeaderSettings = setting(
        section(HeaderSettings), "more headers, in both directions", default=HeaderSettings()
    )
    tls: TlsSettings = setting(section(TlsSettings), "certificates; they are always verified", default=TlsSettings())
    proxy: ForwardProxy | None = setting(
        forward_proxy(),
        "the HTTP proxy to reach it through, by CONNECT",
        default=None,
        shown="`HTTPS_PROXY` of the environment, if `base_url` is https:// and `NO_PROXY` does not name its host",
    )
    on_client_disconnect: OnClientDisconnect = setting(
        choice(OnClientDisconnect),
        "when the client disconnects: `cancel` closes the provider's stream and estimates the usage; `drain` keeps "
        "reading for the reported usage, within the bounds of `drain`",
        default=OnClientDisconnect.CANCEL,
        formerly="on_client_leave",
    )
    failover_on: frozenset[str] | None = setting(
        failures(),
        "after which failures the model's next provider is tried; `failed_answer`: a status of success, and then an "
        "error as the first event, or no answer at all. After a failure to connect it is tried in any case",
        default=None,
        shown="`[401, 402, 403, 404, 408, 409, 429, 499, 5xx, failed_answer]`",
    )
    drain: Drain = setting(section(Drain), "bounds of `drain`", default=Drain())
    timeouts: Timeouts = setting(section(Timeouts), "timeouts, in seconds", default=Timeouts())
    inject_usage: InjectUsage = setting(
        choice(InjectUsage),
        "request usage in streams whose client did not; `auto` stops for an hour for a model that refuses the "
        "field and accepts the same request without it",
        default=InjectUsage.AUTO,
    )
    usage_include: bool | None = setting(
        flag_or_auto(),
        'whether a client\'s member `usage: {"include": true}` (OpenRouter) is sent to it; `auto`: at openrouter.ai',
        default=None,
        shown="auto",
    )
    heartbeat_s: float = setting(
        seconds(DAY_S, zero=True), "silence of a stream after which the client gets an SSE comment; 0: off", default=0.0
    )
    cumulative: bool | None = setting(
        flag_or_auto(), "each chunk repeats the text so far; `auto`: detected", default=None, shown="auto"
    )
    hidden_by_time: bool = setting(
        flag(),
        "bill an answer that ended before its first word by its duration, for models that hide their reasoning: "
        "with the tokens per second of the model's reported answers; entries show the count in any case "
        "(`hidden_by_time`)",
        default=False,
    )
    bill: Mapping[str, str] = setting(
        policy(), "exceptions to the table of billed parts below", default_factory=dict, shown="{}"
    )
    usage: UsageSettings = setting(section(UsageSettings), "how the provider's usage is taken", default=UsageSettings())
    not_billed: frozenset[str] = setting(
        texts(_USAGE_PATH, "a path as in an entry's detail `unread`: `usage.queue_time`"),
        "numbers and words of the provider's usage that cost nothing, so that entries do not list them as unread",
        default=frozenset(),
        shown="[]",
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
