"""The table of refusals, in the code and in the docs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from proxy.billing.attempts import may_be_billed
from proxy.gateway.upstream.refusals import FAILOVER_ON, REFUSALS, failure_of, may_be_answered_elsewhere, rest_s
from proxy.http.framing import Head
from proxy.settings import ProviderSettings

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "provider-failover.md"


def test_the_docs_have_the_table() -> None:
    rows = re.findall(r"^  \| ([0-9, ]+|5xx) \|.*\| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    said = {}
    for statuses, rests, cost in rows:
        for status in re.findall("[0-9]+", statuses.replace("5xx", "500")):
            said[int(status)] = rests != "no", cost.startswith("unknown")
    listed = {status: (refusal.rest_s > 0, may_be_billed(status)) for status, refusal in REFUSALS.items()}
    assert said == listed | {500: (True, True)}


def test_what_the_client_has_done_wrong_is_answered_once() -> None:
    assert [status for status in range(400, 600) if not may_be_answered_elsewhere(failure_of(status))] == [
        status for status in range(400, 500) if status not in REFUSALS
    ]


def test_a_rest_is_the_stated_one_or_that_of_the_table() -> None:
    def head(*fields: tuple[str, str]) -> Head:
        return Head(429, fields, chunked=False, length=0, keep_alive=True)

    assert rest_s(429, head(), 0.0) == REFUSALS[429].rest_s
    assert rest_s(429, head(("retry-after", "0.5")), 0.0) == 0.5
    assert rest_s(429, head(("retry-after-ms", "250"), ("retry-after", "9")), 0.0) == 0.25
    assert rest_s(429, head(("retry-after", "soon")), 0.0) == REFUSALS[429].rest_s
    assert rest_s(503, head(), 0.0) == 0.0
    assert rest_s(503, head(("retry-after", "7")), 0.0) == 7.0
    assert rest_s(401, head(("retry-after", "7")), 0.0) == REFUSALS[401].rest_s
    assert rest_s(400, head(("retry-after", "7")), 0.0) == 0.0


def test_the_settings_reference_has_the_same_failures() -> None:
    (shown,) = (one.metadata["shown"] for one in fields(ProviderSettings) if one.name == "failover_on")
    assert set(shown.strip("`[]").split(", ")) == FAILOVER_ON
