"""The settings of prices that refresh themselves. Invariant: a list comes by TLS, or from this machine."""

from __future__ import annotations

from dataclasses import replace

from proxy.foundation.addresses import is_tls_or_loopback
from proxy.settings.fields import FieldType, section, setting, settings_section
from proxy.settings.kinds import checked, duration, flag
from proxy.settings.outbound import OutboundSettings
from proxy.settings.urls import url

PUBLISHED = "https://raw.githubusercontent.com/pydantic/genai-prices/refs/heads/main/prices/new_data/v2/data.json"
# Providers announce prices days ahead; a shorter interval is a burden for those who publish the list.
EVERY_S_MIN = 60


def _every() -> FieldType:
    kind = checked(duration(), lambda value: value is not None and value >= EVERY_S_MIN, "must be a minute or longer")
    return replace(kind, description="a duration (24h, 30m, …), a minute or longer")


def _source() -> FieldType:
    return checked(
        url(),
        is_tls_or_loopback,
        "must be https://, or http:// to this machine: a list that is changed in transit changes your prices",
    )


@settings_section
class RefreshSettings(OutboundSettings):
    """How the built-in price book is refreshed."""

    every_s: int = setting(
        _every(),
        "how long a list applies before it is fetched again; a restart does not count",
        default=86_400,
        shown="`24h`",
        name="every",
    )
    source: str = setting(
        _source(),
        "URL of the list, in the format of genai-prices; no redirect is followed",
        default=PUBLISHED,
        shown="the published list of genai-prices, at raw.githubusercontent.com",
        name="from",
    )
    rate_unpriced: bool = setting(
        flag(),
        "rate exchanges of the last 31 days that have no price, once a list or the configuration has one: by "
        "adjustments, as `tokenweir rerate` does",
        default=False,
    )


@settings_section
class PricesSettings:
    """The built-in price book."""

    refresh: RefreshSettings | None = setting(
        section(RefreshSettings),
        "fetches newer prices while the proxies run; `{}`: the published list, once a day",
        default=None,
        shown="off",
    )
