"""Recorded answers of the smaller routes: usage equal to the truth that was told beside them, at every cut."""

from __future__ import annotations

import pytest
from msgspec import structs

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from tests.metering.corpus.corpus import NEEDS_CORPUS, cuts
from tests.metering.corpus.dialects import metered
from tests.metering.corpus.further import FURTHER, further_records, further_usage

pytestmark = NEEDS_CORPUS

# Of each, in the order of FURTHER.
COUNTS = (16, 1, 5, 6, 5, 4, 3, 4, 3, 6)


@pytest.mark.parametrize(
    ("dialect", "name", "path", "count"),
    [(*further, count) for further, count in zip(FURTHER, COUNTS, strict=True)],
    ids=[dialect.name for dialect, *_ in FURTHER],
)
def test_usage_is_the_truth(dialect: Dialect, name: str, path: str, count: int) -> None:
    records = further_records(name, path)
    assert len(records) == count
    for record in records:
        where, asked = record["id"], record["request_json"]
        if asked is not None:
            dialect.facts(asked, "m")
        for pieces in cuts(record):
            result = metered(dialect, record, pieces)
            assert "unread_text" not in result.flags, where
            if record["status"] != 200:
                assert result.usage is None, where
                assert result.failed == "error_body" or not dialect.name.startswith("gemini"), where
                continue
            used = result.usage and structs.replace(result.usage, searches=None)  # of which the truth says nothing
            assert used == further_usage(dialect, record), where
            assert (result.complete, result.failed) == (True, None), where
            assert result.unknown_usage_fields.paths == (), where
            if dialect is GEMINI_INTERACTIONS:
                assert (result.usage_final, result.evidence.empty) == (True, False), where
                assert result.finish_reason in ("completed", "requires_action"), where
