"""A request whose exchange is open, before a provider is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.told_cost import TellsCost
from proxy.gateway.exchange.uploads import Upload
from proxy.gateway.upstream.routing import Route
from proxy.http.connection import ClientConnection
from proxy.http.credentials import ProviderCredential
from proxy.metering.dialect import Dialect
from proxy.metering.request import RequestFacts


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """The request of a client, and what its admission has decided."""

    request: web.BaseRequest
    connection: ClientConnection
    dialect: Dialect
    facts: RequestFacts
    document: dict[str, Any]
    key: ApiKey
    route: Route
    open_exchange: OpenExchange
    received_at: float
    """when the request arrived, by `time.monotonic`"""
    tells_cost: TellsCost
    upload: Upload | None
    """the share of the request in the limit on large uploads, until a provider has accepted it; None: it is small"""
    body_bytes: int = 0
    """size of the client's body"""
    own_credential: ProviderCredential | None = None
    """the client's own provider credential; None: the operator's credential is used"""
