"""The settings of one provider.

Invariants: those of `values.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from proxy.foundation.secret import Secret
from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects import DIALECT_NAMES
from proxy.metering.stored_objects import OBJECT_APIS
from proxy.settings.cloud_auth import AuthSettings
from proxy.settings.fields import section, setting, settings_section, several
from proxy.settings.kinds import (
    choice,
    choices,
    flag,
    flag_or_auto,
    policy,
    seconds,
    secret,
    texts,
    whole,
)
from proxy.settings.outbound import CredentialSettings, ForwardProxy, TlsSettings, failures, forward_proxy
from proxy.settings.provider_headers import HeaderSettings
from proxy.settings.urls import url

# No exchange takes a day; a larger number is probably in milliseconds.
DAY_S = 86_400.0
# Four times the output limit of any model of 2026.
DRAIN_TOKENS_MAX = 1_000_000
# A path in a usage object, with a word after it if it is one of a word.
_USAGE_PATH = re.compile(r"[A-Za-z][A-Za-z0-9_.=-]{0,199}", re.ASCII)


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
