"""Recorded answers of OpenAI's other endpoints, and of those who copy them: usage equal to the truth told beside them.

By rule, not by the record: what generates nothing has 0 completion tokens, and `total_tokens` alone is the prompt; what
is counted in other units (search units, seconds, images) has the truth in its raw object, or in the answer itself:
pictures in `data`, the `duration` of a transcript. Of speech the recorder kept JSON, which is not read.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from proxy.metering.dialect import Dialect
from proxy.metering.usage import Usage
from tests.metering.corpus.corpus import AT_ONE_CUT_OR_EVERY, NEEDS_CORPUS, cuts
from tests.metering.corpus.dialects import metered
from tests.metering.corpus.openai_endpoints import NAMES, expected, records_of, unfinished

pytestmark = NEEDS_CORPUS


@AT_ONE_CUT_OR_EVERY
@pytest.mark.parametrize(("dialect", "names", "count"), NAMES, ids=[dialect.name for dialect, *_ in NAMES])
def test_usage_is_the_truth(dialect: Dialect, names: tuple[str, ...], count: int, every: bool) -> None:
    records = records_of(dialect, names)
    assert len(records) == count
    for record in records:
        results = [metered(dialect, record, pieces) for pieces in cuts(record, every=every)]
        assert all(result == results[0] for result in results), record["id"]
        told = results[0].usage
        without = {"cache_write_tokens": None, "audio_completion_tokens": None}  # of chats that were recorded here
        assert (told and structs.replace(told, **without)) == _chats(expected(dialect, record), told), record["id"]
        assert (results[0].complete or record["status"] != 200) != unfinished(record), record["id"]


def _chats(usage: Usage | None, told: Usage | None) -> Usage | None:
    """`usage`; the truth does not say how much of a chat's prompt was audio."""
    if usage is None or told is None or usage.audio_prompt_tokens is not None:
        return usage
    return structs.replace(usage, audio_prompt_tokens=told.audio_prompt_tokens)
