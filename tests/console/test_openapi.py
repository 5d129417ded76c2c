"""The document is the truth: every route is in it, and a tester made of it finds nothing that answers otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from proxy.reports.usage import id_from
from tests.console.stand import SECRET, Stand
from tests.ledger.entries import a_ledger, an_entry
from tests.ledger.priced_entries import settle
from tests.support.examples import AT_RANDOM

pytestmark = pytest.mark.io

# Requests of each route, valid and invalid: one, always the same; many in `make faults`, at random.
EXAMPLES = 40 if AT_RANDOM else 1
# More keys than a list may have can make a body that is too long: it is refused before its fields are read.
TOO_LONG = "413"
ROUTES = {
    "/account/block": ["post"],
    "/account/list": ["get"],
    "/account/new": ["post"],
    "/account/unblock": ["post"],
    "/account/update": ["post"],
    "/credit/add": ["post"],
    "/dimension/erase": ["post"],
    "/grant/add": ["post"],
    "/grant/list": ["get"],
    "/grant/revoke": ["post"],
    "/key/block": ["post"],
    "/key/bulk_block": ["post"],
    "/key/bulk_unblock": ["post"],
    "/key/delete": ["post"],
    "/key/generate": ["post"],
    "/key/info": ["get"],
    "/key/list": ["get"],
    "/key/unblock": ["post"],
    "/key/update": ["post"],
    "/key/{key}/regenerate": ["post"],
    "/limit/delete": ["post"],
    "/limit/list": ["get"],
    "/limit/new": ["post"],
    "/limit/update": ["post"],
    "/v1/audit": ["get"],
    "/v1/budgets": ["get"],
    "/v1/exchanges": ["get"],
    "/v1/exchanges/{exchange_id}": ["get"],
    "/v1/exchanges/{exchange_id}/adjust": ["post"],
    "/v1/exchanges/{exchange_id}/receipt": ["get"],
    "/v1/exchanges/{exchange_id}/stop": ["post"],
    "/v1/live": ["get"],
    "/v1/me": ["get"],
    "/v1/me/prices": ["get"],
    "/v1/me/rotate": ["post"],
    "/v1/organization/costs": ["get"],
    "/v1/organization/usage/completions": ["get"],
    "/v1/dead-letters": ["get"],
    "/v1/models": ["get"],
    "/v1/periods/close": ["post"],
    "/v1/periods/{month}": ["get"],
    "/v1/providers": ["get"],
    "/v1/refusals": ["get"],
    "/v1/rerate": ["post"],
    "/v1/rerate/preview": ["post"],
    "/v1/sinks": ["get"],
    "/v1/statements": ["get"],
    "/v1/statements/mail": ["get"],
    "/v1/statements/send": ["post"],
    "/v1/statements/{scope_id}": ["get"],
    "/v1/usage": ["get"],
    "/v1/usage/change": ["get"],
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("openapi")
    engine = a_ledger(folder)
    settle(engine, an_entry(exchange=f"{id_from(1_793_000_000.0)}7000-8000-000000000000"), node=None)
    made = Stand(folder, engine)
    made.key()
    yield made
    made.close()
    engine.dispose()


def test_every_route_is_in_the_document(filled: Stand) -> None:
    shown = filled("GET", "/openapi.json", key=None).body
    assert shown["openapi"] == "3.1.0"
    assert {path: sorted(methods) for path, methods in shown["paths"].items()} == ROUTES
    for path, methods in shown["paths"].items():
        for method in methods:
            refused = filled(method.upper(), re.sub("{.*}", "k", path), key=None)
            assert refused.status == 401, path


@pytest.mark.thorough
@pytest.mark.hypothesis
def test_a_tester_made_of_the_document_finds_nothing(filled: Stand) -> None:
    """Valid requests and invalid ones: no 5xx, every answer as documented, what is not allowed is refused."""
    schemathesis: Any = pytest.importorskip("schemathesis", reason="schemathesis is not installed: renew the venv")
    schema = schemathesis.openapi.from_url(f"{filled.url}/openapi.json")
    rejection = schema.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, TOO_LONG]
    # Some limits depend on one another (how many buckets of which width): no document can say so. And who tries many
    # wrong secrets is told to wait, not that they are wrong; the test above has every route without one.
    # In a query one name alone is a list of one.
    left_out = schemathesis.checks.CHECKS.get_by_names(["positive_data_acceptance", "ignored_auth"])
    of_queries = left_out + schemathesis.checks.CHECKS.get_by_names(["negative_data_rejection"])
    tested = []
    for found in schema.get_all_operations():
        operation = found.ok()
        tested.append(operation.path)
        excluded = of_queries if operation.method == "get" else left_out
        for mode in schemathesis.GenerationMode:
            ask(operation.as_strategy(generation_mode=mode), excluded)
    assert len(tested) == len(ROUTES)


def ask(cases: Any, excluded: list[Any]) -> None:
    """Some of these requests, each with its answer checked."""

    @settings(
        max_examples=EXAMPLES, derandomize=not AT_RANDOM, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases)
    def asked(case: Any) -> None:
        case.call_and_validate(headers={"Authorization": f"Bearer {SECRET}"}, excluded_checks=excluded, timeout=10)

    asked()
