"""Recorded generateContent and streamGenerateContent of Google's servers: usage equal to the truth beside them.

Exceptions: what the provider's own tools put before the model stands beside the truth's prompt, and is billed as part
of ours (29 records); and one stream was recorded without its finishReason, so that its counts are not final.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage
from tests.metering.corpus.corpus import AT_ONE_CUT_OR_EVERY, FIELDS, NEEDS_CORPUS, cuts, records_named
from tests.metering.corpus.dialects import UNFINISHED, in_tokens, metered

pytestmark = NEEDS_CORPUS


def read(record: dict[str, Any], pieces: list[bytes]) -> Metered:
    return metered(GEMINI_STREAM if record["streamed"] else GEMINI_GENERATE, record, pieces)


def check(record: dict[str, Any], result: Metered) -> None:
    truth, where = record["truth"], record["id"]
    assert "unread_text" not in result.flags, where
    if record["status"] >= 400:
        assert (result.usage, result.failed, result.evidence.empty) == (None, "error_body", True), where
        return
    assert result.usage_raw == truth["usage_raw"], where
    if where == UNFINISHED:
        assert result.usage == Usage(prompt_tokens=truth["prompt_tokens"]), where
        assert not result.complete
        return
    tools = truth["tool_use_prompt_tokens"]
    counts = {name: truth[name] for name in FIELDS}
    assert in_tokens(result.usage) == Usage(
        **counts | ({"prompt_tokens": truth["prompt_tokens"] + tools} if tools else {})
    ), where
    assert result.complete, where
    assert not {"usage_invalid", "total_mismatch", "unparsable_event", "usage_decreased"} & set(result.flags), where
    assert ("tool_prompt" in result.flags) == bool(tools), where


@AT_ONE_CUT_OR_EVERY
def test_usage_is_the_truth(every: bool) -> None:
    arrays = tools = 0
    silent = Counter[str]()
    records = records_named("google.generate")
    for record in records:
        results = [read(record, pieces) for pieces in cuts(record, every=every)]
        check(record, results[0])
        if record["truth"] and record["truth"]["candidates_tokens"] and results[0].evidence.empty:
            silent[str(results[0].finish_reason)] += 1
        assert all(result == results[0] for result in results), record["id"]
        arrays += record["streamed"] and record["body"].startswith("[")
        tools += "tool_prompt" in results[0].flags
    assert (len(records), arrays, tools) == (334, 17, 29)
    # Calls that were never made: their tokens are billed, and nothing of them is shown.
    assert set(silent) <= {"UNEXPECTED_TOOL_CALL", "MAX_TOKENS", "STOP"}
    assert silent.total() <= 6, silent
