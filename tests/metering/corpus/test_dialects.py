"""Recorded answers in the languages beside chat: usage equal to the truth that was told beside them.

Exceptions, each by its shape: a body that holds several answers, one after the other (a recorder joined them), whose
truth is the last one's alone; a compaction, whose tokens the truth leaves out and the provider bills; and Cohere's
count of reasoning, which the truth leaves out (all else of it is equal).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_COUNT_TOKENS, ANTHROPIC_MESSAGES
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.mistral.completions import MISTRAL_FIM
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT, OLLAMA_GENERATE
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage
from tests.metering.corpus.corpus import AT_ONE_CUT_OR_EVERY, FIELDS, FITTED, NEEDS_CORPUS, cuts, records_named
from tests.metering.corpus.dialects import exception, in_tokens, metered, spoken

# Mistral speaks chat at OpenAI's path; the corpus names it apart.
MISTRAL_CHAT = replace(OPENAI_CHAT, name="mistral.chat")
# How many records there are of each, plain and streamed, and the exceptions among them.
LANGUAGES = (
    (ANTHROPIC_MESSAGES, 544, {"several": 3, "compaction": 1}),
    (ANTHROPIC_COUNT_TOKENS, 7, {}),
    (OPENAI_RESPONSES, 571, {"several": 2}),
    (MISTRAL_CHAT, 106, {}),
    (MISTRAL_FIM, 3, {}),
    (COHERE_CHAT, 42, {"reasoning": 3}),
    (OLLAMA_CHAT, 31, {}),
    (OLLAMA_GENERATE, 9, {}),
)

pytestmark = NEEDS_CORPUS


def expected(dialect: Dialect, record: dict[str, Any]) -> Usage | None:
    if dialect.free:
        return Usage(0, None, 0, None, 0) if record["status"] == 200 else None
    truth = record["truth"]
    return truth and Usage(**{name: truth[name] for name in FIELDS} | FITTED.get(record["id"], {}))


@AT_ONE_CUT_OR_EVERY
@pytest.mark.parametrize(("dialect", "count", "known"), LANGUAGES, ids=[dialect.name for dialect, *_ in LANGUAGES])
def test_usage_is_the_truth(dialect: Dialect, count: int, known: dict[str, int], every: bool) -> None:
    records = list(filter(spoken, records_named(dialect.name)))
    assert len(records) == count
    exceptions: Counter[str] = Counter()
    for record in records:
        results = [metered(dialect, record, pieces) for pieces in cuts(record, every=every)]
        assert all(result == results[0] for result in results), record["id"]
        assert "unread_text" not in results[0].flags, record["id"]
        if in_tokens(results[0].usage) != expected(dialect, record):
            why = exception(record)
            assert why is not None, record["id"]
            exceptions[why] += 1
        assert results[0].complete or record["status"] != 200 or record["truth"] is None, record["id"]
        if not dialect.free:
            check_evidence(record, results[0])
    assert exceptions == known


def check_evidence(record: dict[str, Any], result: Metered) -> None:
    """Whatever was generated is evidence, and errors are not."""
    if record["status"] >= 400:
        assert result.evidence.empty, record["id"]
        assert result.failed == "error_body" or not result.complete, record["id"]
    truth = record["truth"]
    visible = truth and (truth["completion_tokens"] or 0) - (truth["reasoning_tokens"] or 0)
    assert not (visible and visible > 5 and result.evidence.empty), record["id"]
