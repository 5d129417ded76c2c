"""Edges and the chart's ingress pass on the paths of the table of routes, and no others."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from proxy.http.probes import add_probes
from proxy.http.server import Routes
from proxy.runtime.proxy.handlers import client_routes
from tests.deploy.prefixes import DEPLOY, FILES, prefixes, written


def first_parts(routes: Routes) -> set[str]:
    """What its paths begin with."""
    paths = [*routes._table, *(before for templates in routes._templates.values() for before, _ in templates)]
    return {path.split("/")[1] for path in paths}


@pytest.mark.parametrize("file", FILES)
def test_an_edge_passes_on_the_paths_of_the_table(file: str) -> None:
    text = (DEPLOY / file).read_text()
    assert text == written(text), "run: python -m tests.deploy.prefixes"


def test_the_list_has_every_route_of_clients_and_none_of_monitors() -> None:
    probes = Routes()
    add_probes(probes, not_ready=lambda: None, exposition=MagicMock())
    # The base URL itself is asked only by tools that reach the proxy without an edge.
    clients = first_parts(client_routes(MagicMock())) - first_parts(probes) - {""}
    assert clients >= {"v1", "v2", "api"}
    assert clients <= set(prefixes())
    assert not first_parts(probes) & set(prefixes())
