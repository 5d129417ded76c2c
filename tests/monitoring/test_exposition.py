"""The words of /metrics are a contract: whoever changes a name, a help text, a label or a bound sees it here, and
promtool has no complaint. `python -m tests.monitoring.test_exposition` writes the golden file anew."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.billing.record import Attempt, BillableParts, Opened, Outcome, UsageRecord
from proxy.billing.settlement import entry
from proxy.metering.usage import Reading, Usage, UsageSource
from proxy.telemetry.metrics import Metrics
from tests.monitoring.files import GOLDEN
from tests.support.prometheus import promtool


def record(outcome: Outcome, source: UsageSource, **details: object) -> UsageRecord:
    """An exchange of 20 + 10 tokens that lasted 1.5 s."""
    opened = Opened(
        "0199-e", "key-1", "alice", "openai", "gpt-x", "gpt-x", "chat", True, 1.0, None, None, 20, None, 0
    )  # fmt: skip
    usage = Usage(prompt_tokens=20, cached_tokens=5, completion_tokens=10, reasoning_tokens=4, cache_write_tokens=3)
    read = Reading(usage, source)
    return UsageRecord(opened, outcome, read, BillableParts.EVERYTHING, 12, 900, 1500.0, 300.0, details=details)


def exposition() -> str:
    """Every series of ours, fed once."""
    metrics = Metrics(["gpt-x"], keys_max=1, projects_max=1)
    assert metrics.ledger.projects is not None
    metrics.gauges(
        in_flight=lambda: 2, websockets=lambda: 1, depth=lambda: 1, oldest_age_s=lambda: 0.5, unwritten=lambda: 0
    )
    metrics.overflowed("new_values")
    metrics.budgets.outstanding(lambda: 1_500_000_000)
    metrics.configured("0123456789ab", failed=False)
    metrics.providers.watch("openai", ["closed", "open"], lambda: "closed")
    records = [
        record(
            Outcome.SERVED,
            UsageSource.REPORTED,
            provider_timings={"prefill_time": 40, "decode_time_mean": 10},
            unread=["usage.speed=fast"],
            refuted={"completion_tokens": {"reported": 10, "at_least": 11}},
            unpriced_units=["tier:priority"],
        ),
        record(Outcome.CLIENT_LEFT, UsageSource.ESTIMATED, policy="drain", read_on_ms=700.0),
    ]
    for one, error in zip(records, (-0.07, None), strict=True):
        metrics.opened(overhead_s=0.0004)
        metrics.ended(one, estimate_error=error)
    metrics.gaps.observe(0.02)
    metrics.late.observe(0.03)
    metrics.refused(401, "invalid_api_key")
    metrics.attempted(Attempt("openai", "gpt-x", "refused", 429, 1.0, 2.0))
    metrics.committed({"inserted": 2}, entries=[entry(one) for one in records], duration_s=0.004)
    metrics.ledger.projects.place({"key-1": "default"})
    metrics.ledger.sent(3, again=1)
    metrics.ledger.differences.labels("balances").set(0)
    metrics.later.settled(replace(entry(records[0]), usage_source=UsageSource.PROVIDER_LATER.value), 9)
    metrics.budgets.rejections.labels("money").inc()
    metrics.budgets.alerts.labels("80").inc()
    families = metrics.exposition().decode().split("# HELP ")
    return "".join(f"# HELP {one}" for one in families if one.startswith("tokenweir_"))


def test_the_exposition_is_the_golden_one() -> None:
    assert exposition() == GOLDEN.read_text()


@pytest.mark.external
def test_promtool_has_no_complaint() -> None:
    assert promtool("check", "metrics", stdin=exposition()) == ""


if __name__ == "__main__":
    GOLDEN.write_text(exposition())
