"""A client that leaves in mid-stream: what becomes of the provider's stream, and what is billed.

Law: what the provider generated is in its log; the bill follows it, exactly where the provider reported it.
"""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.conformance.clients import PythonClient
from tests.conformance.leaving import endless, leave_after, near
from tests.conformance.shapes import dollars
from tests.conformance.stand import Stand


@pytest.mark.parametrize(
    ("system", "language", "texts"),
    [
        ("tera", "tera", 30),
        ("siliconstorm", "siliconstorm", 30),
        ("siliconstorm", "siliconstorm-fulltext", 40),
        ("electron-cancel", "electron", 30),
    ],
)
def test_leaving_cancels_and_the_text_is_estimated_once(
    stand: Stand, python_client: PythonClient, system: str, language: str, texts: int
) -> None:
    model = stand.plan(system, endless(language))
    leave_after(stand, python_client, model, texts=texts)
    seen = stand.seen_until(model, lambda one: one["duration_s"] is not None)
    entry = stand.entry(model)
    details = entry["details"]
    assert seen["ended"] == "client_left"
    assert seen["completion_tokens"] < 400
    assert (entry["outcome"], entry["usage_source"], details["policy"]) == ("client_left", "estimated", "cancel")
    assert near(entry["completion_tokens"], seen["completion_tokens"])
    assert entry["prompt_tokens"] > 0
    assert ("cumulative" in details.get("flags", ())) == (language == "siliconstorm-fulltext")


@pytest.mark.parametrize("system", ["tensorloop", "electron"])
def test_leaving_drains_and_what_was_generated_is_billed_once(
    stand: Stand, python_client: PythonClient, system: str
) -> None:
    model = stand.plan(system, endless(system, tokens=50))
    leave_after(stand, python_client, model, texts=3)
    entry = stand.entry(model)
    details = entry["details"]
    (seen,) = stand.seen(model)
    assert (seen["ended"], seen["client_left_s"], seen["completion_tokens"]) == ("served", None, 50)
    assert (entry["outcome"], entry["usage_source"], details["policy"]) == ("client_left", "reported", "drain")
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (seen["prompt_tokens"], 50)
    assert Decimal(entry["charge_usd"]) == dollars(seen["prompt_tokens"], 50, cached=seen["cached_tokens"])
    assert "drain_ended_by" not in details
    assert 2 < entry["events"] < 50  # those passed to the client, not those that were drained
