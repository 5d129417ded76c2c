"""The curl lines of docs/reference/http-api.md: each is a request that has a route and that its dialect can read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import MagicMock
from urllib.parse import unquote

import pytest

from proxy.console.api.endpoints import add
from proxy.console.api.exchanges import ExchangesApi
from proxy.console.api.own_key import OwnKeyApi
from proxy.gateway.key_info.handler import KeyInfoHandler
from proxy.gateway.models.handler import ModelsHandler
from proxy.gateway.resume.handler import ResumeHandler
from proxy.http.probes import ROOT, add_probes
from proxy.http.server import Routes
from proxy.metering.dialect import NAME, Dialect
from proxy.metering.dialects import DIALECTS
from proxy.runtime.proxy.handlers import waiting_routes
from tests.docs.routes import PAGE

# Paths of the proxy's own that are other names of one with an example.
ALIASES = {"/v1/key", "/v1/auth/key", "/v1/credits", "/v1/generation"}


class Request(NamedTuple):
    """A request of a curl line."""

    line: str
    method: str
    path: str
    """without the query"""
    document: dict[str, Any] | None
    """None: no JSON body"""
    form: list[str]
    """fields of a form, as `name=value`"""


def requests() -> list[Request]:
    text = PAGE.read_text().partition("\n## Examples\n")[2].replace("\\\n", " ")
    return list(map(parsed, re.findall(r"^curl .*$", text, re.MULTILINE)))


def parsed(line: str) -> Request:
    words = iter(shlex.split(line)[1:])
    method, data, form, url, is_query = "", "", list[str](), "", False
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-d":
            data = next(words)
        elif word == "-F":
            form.append(next(words))
        elif word in ("-H", "-o"):
            next(words)
        elif word == "-G":
            is_query = True
        elif word != "-N":
            assert word.startswith("$PROXY/"), line
            assert not url, f"two addresses: {line}"
            url = word.removeprefix("$PROXY")
    method = method or ("POST" if (data and not is_query) or form else "GET")
    document = json.loads(data) if data and not is_query else None
    return Request(line, method, url.partition("?")[0], document, form)


def dialect_of(path: str) -> tuple[Dialect, str | None] | None:
    """The dialect of a path, and the model in it."""
    for dialect in DIALECTS:
        for one in dialect.paths:
            pattern = re.escape(one).replace(re.escape(NAME), "(?P<model>.+)").replace(r"\{project\}", "[^/]+")
            if found := re.fullmatch(pattern.replace(r"\{location\}", "[^/]+"), path):
                return dialect, found.groupdict().get("model") and unquote(found["model"])
    return None


def all_routes() -> Routes:
    routes = waiting_routes()
    routes.local("GET", "/", ROOT)
    add_probes(routes, not_ready=MagicMock(), exposition=MagicMock())
    ModelsHandler(MagicMock(), MagicMock()).add_to(routes)
    KeyInfoHandler(MagicMock(), MagicMock(), MagicMock()).add_to(routes)
    ResumeHandler(keys=MagicMock(), tapes=MagicMock(), others=MagicMock(), stall_s=1.0, accepting=MagicMock()).add_to(
        routes
    )
    own = OwnKeyApi(*[MagicMock()] * 4, pepper=b"", unix_time=MagicMock(), models=MagicMock(), payer=MagicMock(),
                    prices=MagicMock(), allows_rotation=MagicMock())  # fmt: skip
    for endpoint in (*own.endpoints(), ExchangesApi(MagicMock(), MagicMock()).one_endpoint):
        add(routes, endpoint, MagicMock())
    return routes


ROUTES = all_routes()


def own_paths() -> Iterator[str]:
    """The paths without a name in them that the proxy answers itself."""
    dialects = {path for dialect in DIALECTS for path in dialect.paths}
    return (path for path in ROUTES._table if path not in dialects and path not in ALIASES)


@pytest.mark.parametrize("request_", requests(), ids=lambda one: f"{one.method} {one.path}"[:70])
def test_a_request_has_a_route_and_can_be_read(request_: Request) -> None:
    ROUTES.find(request_.method, request_.path)
    found = dialect_of(request_.path) if request_.method == "POST" else None
    if found is None:
        return
    dialect, model = found
    if request_.document is None:
        fields = dict(one.split("=", 1) for one in request_.form)
        assert model or fields["model"]
        assert any(value.startswith("@") for value in fields.values())
        return
    facts = dialect.facts(request_.document, model)
    assert facts.model


def test_every_endpoint_has_an_example() -> None:
    shown = requests()
    dialects = {found[0].name for one in shown if one.method == "POST" and (found := dialect_of(one.path))}
    assert {one.name for one in DIALECTS if one.is_posted} - dialects == set()
    assert set(own_paths()) - {one.path for one in shown} == set()
