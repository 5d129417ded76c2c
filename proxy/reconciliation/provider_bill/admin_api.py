"""The APIs that a provider's usage and costs are pulled from: addresses, endpoints, queries and headers.

Sources: OpenAI's Administration API in openai/openai-openapi (`/organization/usage/*`, `/organization/costs`: at most
31 daily buckets a page, `group_by` repeated); Anthropic's Admin API reference, "Get Messages Usage Report" and "Get
Cost Report" on platform.claude.com (as many, `group_by[]`; grouping by speed needs a beta header). Both page by
`has_more` and `next_page`, which is sent back as `page`.

Invariant: an address is derived only from the provider's own host, so that an admin key is never sent to a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from proxy.reconciliation.provider_bill import anthropic, openai
from proxy.reconciliation.provider_bill.bill import BillEndpoint
from proxy.settings import ProviderSettings

# The most daily buckets that both return in one page; OpenAI's costs would allow 180.
_DAYS_A_PAGE = 31


class PullError(ValueError):
    """Nothing was pulled. The message names the setting to check, and has neither a key nor any text of an answer."""


@dataclass(frozen=True, slots=True)
class AdminApi:
    """One provider's API of usage and costs."""

    host: str
    family: str
    """the dialect family"""
    endpoints: tuple[BillEndpoint, ...]
    period: Callable[[int, int], Mapping[str, str]]
    """the query of a period: Unix seconds, the end exclusive"""
    group_by: str
    """the name of this field in the query"""
    headers: Callable[[str], Mapping[str, str]]
    """the headers with this admin key"""

    def query(self, endpoint: BillEndpoint, begin_s: int, end_s: int) -> list[tuple[str, str]]:
        """The query of the first page."""
        buckets = {**self.period(begin_s, end_s), "bucket_width": "1d", "limit": str(_DAYS_A_PAGE)}
        return [*buckets.items(), *((self.group_by, name) for name in endpoint.group_by)]


def _iso(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


ADMIN_APIS = (
    AdminApi(
        host="api.openai.com",
        family="openai",
        endpoints=openai.ENDPOINTS,
        period=lambda begin_s, end_s: {"start_time": str(begin_s), "end_time": str(end_s)},
        group_by="group_by",
        headers=lambda key: {"Authorization": f"Bearer {key}"},
    ),
    AdminApi(
        host="api.anthropic.com",
        family="anthropic",
        endpoints=anthropic.ENDPOINTS,
        period=lambda begin_s, end_s: {"starting_at": _iso(begin_s), "ending_at": _iso(end_s)},
        group_by="group_by[]",
        headers=lambda key: {
            "x-api-key": key,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "fast-mode-2026-02-01",
        },
    ),
)


def admin_api_of(provider: ProviderSettings) -> tuple[AdminApi, str]:
    """The API of this provider, and the URL that its endpoints' paths follow. Raises PullError."""
    url = provider.admin_url or provider.base_url
    host = urlsplit(url).hostname
    at_host = [api for api in ADMIN_APIS if api.host == host]
    if provider.admin_url is None and not at_host:
        hosts = " or ".join(api.host for api in ADMIN_APIS)
        raise PullError(f"providers.{provider.name}.admin_url: is missing: base_url is not at {hosts}")
    families = {name.partition(".")[0] for name in provider.dialects}
    possible = at_host or [api for api in ADMIN_APIS if api.family in families]
    if len(possible) != 1:
        either = " or ".join(api.family for api in ADMIN_APIS)
        raise PullError(f"providers.{provider.name}.dialects: must have either {either}: admin_url does not say which")
    return possible[0], url
