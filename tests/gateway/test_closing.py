"""What an entry is told of how its numbers were made."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.gateway.closing import _details
from proxy.metering.meter import Metered
from proxy.metering.usage import Evidence, Usage, UsageSource

SEEN = {"text_events": 3, "chars_latin": 12, "blanks": 2}
HALF = {"prompt_tokens": 9}


@pytest.mark.parametrize(
    ("raw", "source", "told"),
    [
        (None, UsageSource.ESTIMATED, {"evidence": SEEN}),
        (HALF, UsageSource.ESTIMATED, {"usage": HALF, "evidence": SEEN}),  # half of it was estimated from that
        (HALF, UsageSource.REPORTED, {"usage": HALF}),
        (None, UsageSource.NONE, {"evidence": SEEN}),
    ],
)
def test_an_estimate_keeps_its_evidence(raw: dict[str, Any] | None, source: UsageSource, told: dict[str, Any]) -> None:
    metered = Metered(Usage(**raw) if raw else None, raw, Evidence(**SEEN), None, None, False, None, 3, (), {})
    assert _details(metered, source) == told
