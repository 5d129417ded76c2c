"""What a provider says that an answer costs is kept as it says it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from proxy.metering.dialects import DIALECTS
from proxy.metering.stated import stated_usd
from tests.metering.corpus.corpus import NEEDS_CORPUS, all_records
from tests.metering.corpus.dialects import metered

BEHIND = {"upstream_inference_cost": 0.004}


@pytest.mark.parametrize(
    ("usage", "beside", "usd"),
    [
        ({"cost": 0.00012}, None, "0.00012"),
        ({"cost": 2.625e-05, "is_byok": False, "cost_details": BEHIND}, None, "0.00002625"),
        ({"cost": 0.0002, "is_byok": True, "cost_details": BEHIND}, None, "0.0042"),
        ({"cost": 0.0002, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, None, "0.0002"),
        ({"cost": 0, "is_byok": False}, None, "0"),
        ({"cost": {"input_tokens_cost": 1e-05, "request_cost": 0.005, "total_cost": 0.00501}}, None, "0.00501"),
        ({"cost": {"input_tokens_cost": 1e-05}}, None, None),
        ({"cost_in_usd_ticks": 3530500}, None, "0.00035305"),
        ({"cost_in_usd_ticks": 1}, None, "0.0000000001"),
        ({"pydantic_ai_gateway": {"cost_estimate": 3.11e-05}}, None, "0.0000311"),
        ({}, {"usd": 0.00033855, "diem": 0}, "0.00033855"),
        ({"prompt_tokens": 3}, None, None),
        ({"cost": "0.5"}, None, None),
        ({"cost": True}, None, None),
        ({"cost": -0.5}, None, None),
        ({"cost": 1e300}, None, None),
        ({"cost": float("inf")}, None, None),
        ({"cost": float("nan")}, None, None),
        ({"cost_in_usd_ticks": 10**400}, None, None),
        ({}, "usd", None),
    ],
)
def test_the_cost_that_a_provider_states(usage: dict[str, Any], beside: object, usd: str | None) -> None:
    assert stated_usd(usage, beside) == (None if usd is None else Decimal(usd))


# As each host writes it into its body; the last one counts.
WRITTEN = {
    "openrouter.ai": r'"cost": ?([0-9.eE+-]+)',
    "ai-gateway.vercel.sh": r'"cost": ?([0-9.eE+-]+)',
    "api.avian.io": r'"cost": ?([0-9.eE+-]+)',
    "api.perplexity.ai": r'"total_cost": ?([0-9.eE+-]+)',
    "api.venice.ai": r'"usd": ?([0-9.eE+-]+)',
    "api.x.ai": r'"cost_in_usd_ticks": ?([0-9]+)',
}


@pytest.mark.real
@NEEDS_CORPUS
def test_every_recorded_statement_is_read() -> None:
    by_name = {dialect.name: dialect for dialect in DIALECTS}
    read = dict.fromkeys(WRITTEN, 0)
    for record in all_records():
        dialect, host = by_name.get(record["dialect"]), record["provider_host"]
        if dialect is None or host not in WRITTEN or record["truth"] is None:
            continue
        told = re.findall(WRITTEN[host], record["body"])
        usd = metered(dialect, record, [record["body"].encode()]).stated_usd
        per_usd = 10**10 if host == "api.x.ai" else 1
        assert usd == (Decimal(told[-1]) / per_usd if told else None), record["id"]
        read[host] += bool(told)
    assert read == {
        "openrouter.ai": 147, "ai-gateway.vercel.sh": 27, "api.avian.io": 2, "api.perplexity.ai": 7,
        "api.venice.ai": 12, "api.x.ai": 42,
    }  # fmt: skip
