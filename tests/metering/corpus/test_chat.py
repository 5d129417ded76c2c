"""Recorded chat/completions of real providers: usage equal to the truth that was told beside them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.strip import UsageStripper, is_usage_event
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage
from proxy.metering.wire.sse import EventFramer, quiet_events
from tests.metering.corpus.corpus import AT_ONE_CUT_OR_EVERY, FIELDS, FILES, FITTED, NEEDS_CORPUS, cuts, records_in
from tests.metering.corpus.dialects import metered

pytestmark = NEEDS_CORPUS


def check(record: dict[str, Any], result: Metered) -> None:
    truth = record["truth"]
    assert "unread_text" not in result.flags, record["id"]
    units = {name: result.usage and getattr(result.usage, name) for name in Usage.__struct_fields__[len(FIELDS) :]}
    counts = truth and {name: truth[name] for name in FIELDS}
    if counts and counts["cached_tokens"] is None:  # Databricks: by Anthropic's name, which the truth does not have
        counts["cached_tokens"] = truth["usage_raw"].get("cache_read_input_tokens")
    if record["id"] in FITTED:
        counts |= FITTED[record["id"]]
    elif "reasoning_added" in result.flags:  # of xAI: the truth leaves it out, as the wire does
        assert (
            counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"] + counts["reasoning_tokens"]
        )
        counts["completion_tokens"] += counts["reasoning_tokens"]
    assert result.usage == (counts and Usage(**counts, **units)), record["id"]
    assert truth is None or units == {**dict.fromkeys(units), **told(truth["usage_raw"], record["body"])}, record["id"]
    assert (truth and truth["usage_raw"]) == result.usage_raw, record["id"]


def told(raw: dict[str, Any], body: str) -> dict[str, int | None]:
    """What the recorded providers say of cache writes, audio and searches, where each of them says it; a search also by
    citing what was found."""
    prompt, completion, tools, written = (
        raw.get(name) or {}
        for name in (
            "prompt_tokens_details", "completion_tokens_details", "server_tool_use_details", "cache_creation",
        )
    )  # fmt: skip
    return {
        "cache_write_tokens": prompt.get("cache_write_tokens", raw.get("cache_creation_input_tokens")),
        "cache_write_1h_tokens": written.get("ephemeral_1h_input_tokens"),
        "audio_prompt_tokens": prompt.get("audio_tokens"),
        "image_prompt_tokens": prompt.get("image_tokens"),
        "image_completion_tokens": completion.get("image_tokens"),
        "audio_completion_tokens": completion.get("audio_tokens"),
        "searches": tools.get("web_search_requests", raw.get("num_sources_used", 1 if _CITED.search(body) else None)),
    }


_CITED = re.compile(r'"type": ?"url_citation"')


@AT_ONE_CUT_OR_EVERY
@pytest.mark.parametrize("name", FILES)
def test_usage_is_the_truth(name: str, every: bool) -> None:
    records = records_in(name, "openai.chat")
    assert len(records) >= 300
    for record in records if every or name == "open.jsonl" else records[::3]:
        results = [metered(OPENAI_CHAT, record, pieces) for pieces in cuts(record, every=every)]
        check(record, results[0])
        if name == "open.jsonl":
            check_evidence(record, results[0])
        assert all(result == results[0] for result in results), record["id"]


def check_evidence(record: dict[str, Any], result: Metered) -> None:
    """Whatever was generated is evidence, and errors are not."""
    if record["status"] >= 400:
        assert result.evidence.empty, record["id"]
        assert result.failed == "error_body", record["id"]
    hidden = record["truth"] and (record["truth"]["reasoning_tokens"] or 0)
    visible = record["truth"] and (record["truth"]["completion_tokens"] or 0) - hidden
    if visible and visible > 2:
        assert not result.evidence.empty, record["id"]


@AT_ONE_CUT_OR_EVERY
def test_stripping_takes_the_usage_events_and_nothing_else(every: bool) -> None:
    taken = 0
    for record in records_in("open.jsonl", "openai.chat"):
        if not record["streamed"]:
            continue
        body = record["body"].encode()
        kept = [event for event in all_events(body) if not is_usage_event(event)]
        for pieces in cuts(record, every=every):
            stripper = UsageStripper()
            out = b"".join(p if stripper.idle and quiet_events(p) else stripper.feed(p) for p in pieces)
            out += stripper.close()
            assert all_events(out) == kept, record["id"]
            assert len(out) == len(body) or stripper.stripped, record["id"]
        taken += stripper.stripped
    assert taken >= 50


def all_events(body: bytes) -> list[bytes]:
    framer = EventFramer()
    found = [event for event, _ in framer.feed(body)]
    last = framer.close()
    return found if last is None else [*found, last[0]]
