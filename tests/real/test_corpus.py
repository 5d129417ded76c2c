"""Every recorded answer of the open set in a supported dialect, through the proxy at every chunking.

Invariant: the bytes are equal, except for refusals of 401 and 403, which the proxy replaces, and for the usage event
that a client did not request. The usage equals the truth in the record, except for the exceptions named here, each with
its count. Records of the corpus that are not replayed are counted, too. Prints the result.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from tests.gateway.deployment import Deployment
from tests.gateway.dialects import replay_endpoints as endpoints
from tests.gateway.dialects.replay import ASKED, Replay, check, goes_on, records_of, replay_all, replays
from tests.gateway.streams import COUNTS
from tests.metering.corpus.corpus import FITTED
from tests.metering.corpus.dialects import exception, exception_of_gemini, spoken
from tests.support.net import connect

pytestmark = pytest.mark.real

# Replays whose plans the provider holds at once: bounds its memory and its log.
BATCH = 300
# Dialects of the corpus that are not supported, and so refused → the number of records.
NOT_SPOKEN = {
    "anthropic.complete": 8,
    "cohere.chat, version 1": 7,
    "cohere.generate": 5,
    "openai.assistants": 12,
    "watsonx.generate": 2,
}
# The result for a record's usage: it equals the truth, or there is none to compare with, and why.
EQUAL, ERROR, OURS, UNTOLD = "equal", "errors of the provider", "refusals that the proxy replaces", "no usage reported"
# Exceptions, as the tests of the meters explain them.
NAMED = {
    "several": "several answers in one body",
    "compaction": "a compaction, billed and not in the truth",
    "tools": "Gemini's own tools, billed as prompt",
    "reasoning_added": "xAI's reasoning, billed in addition to the completion",
    "fitted": "impossible counts, which are corrected",
}
FOUND = {
    EQUAL: 611,
    UNTOLD: 50,
    ERROR: 39,
    OURS: 17,
    NAMED["tools"]: 19,
    NAMED["several"]: 1,
    NAMED["compaction"]: 1,
    NAMED["reasoning_added"]: 13,
    NAMED["fitted"]: 11,
}


def languages(corpus: Path) -> Iterator[tuple[Dialect | None, list[dict[str, Any]]]]:
    """The records of each language; None: asked as the gateway's tests of chat and its siblings ask."""
    for name in ("openai.chat", *ASKED):
        yield None, records_of(corpus, name)
    yield from endpoints.open_records(corpus)


def ways(record: dict[str, Any]) -> Iterator[Replay]:
    """Every chunking; where it matters for the bytes, both with usage asked for and without."""
    for replay in replays([record], byte_chunks_max=sys.maxsize):
        yield replay
        other = replace(replay, asked=not replay.asked)
        if other.expected != replay.expected:
            yield other


async def replayed(
    deployment: Deployment, dialect: Dialect | None, todo: list[Replay]
) -> list[tuple[Replay, dict[str, Any]]]:
    """Ask for all of them, compare the bytes and the entry, and give each with its entry."""
    deployment.provider.reset()
    if dialect is not None:
        return [(replay, await replay_one(deployment, dialect, replay)) for replay in todo]
    policy = "cancel" if todo[0].dialect == "openai.chat" else "many"
    asked = [(replay, deployment.plan(policy, replay.script(), "real")) for replay in todo]
    await replay_all(deployment, asked)
    found = [(replay, await deployment.entry(model)) for replay, model in asked]
    for replay, entry in found:
        check(replay, entry)
    return found


async def replay_one(deployment: Deployment, dialect: Dialect, replay: Replay) -> dict[str, Any]:
    """The same for one answer of OpenAI's further endpoints."""
    model = deployment.plan("units", replay.script(), "real")
    async with await connect(deployment.url) as client:
        await client.send(endpoints.request(deployment, dialect, model, streamed=replay.record["streamed"]))
        response = await client.read(60)
    entry = await deployment.entry(model)
    endpoints.check(dialect, replay, response, entry)
    return entry


def verdict(dialect: Dialect | None, record: dict[str, Any], entry: dict[str, Any]) -> str:
    """What is to be said of its usage; an unnamed difference is a failure."""
    if record["status"] >= 400:
        return OURS if record["status"] in (401, 403) else ERROR
    if dialect is not None:
        return EQUAL if endpoints.usage_expected(dialect, record) else UNTOLD  # compared by its own check
    told = {name: count for name in COUNTS if (count := (record["truth"] or {}).get(name)) is not None}
    if not told:
        return UNTOLD
    if (fitted := FITTED.get(record["id"])) is not None:
        same = all(entry[name] == fitted.get(name, count) for name, count in told.items())
        return NAMED["fitted"] if same else f"unnamed: {record['id']}"
    if all(entry[name] == count for name, count in told.items()):
        return EQUAL
    if "reasoning_added" in entry["details"].get("flags", ()):
        return NAMED["reasoning_added"]
    return NAMED[exception(record) or exception_of_gemini(record) or f"unnamed: {record['id']}"]


def left_out(corpus: Path) -> Counter[str]:
    """The languages of the corpus that are not asked for here."""
    lines = (corpus / "open.jsonl").read_bytes().split(b"\n")
    every = [json.loads(line) for line in lines if line]
    replayed = {record["id"] for _, records in languages(corpus) for record in records}
    rest = [record for record in every if record["id"] not in replayed]
    rest = [one for one in rest if one["dialect"] != "openai.responses" or not goes_on(one)]  # that is spoken
    return Counter(one["dialect"] + ("" if spoken(one) else ", version 1") for one in rest)


async def test_every_record_at_every_chunking(
    deployment: Deployment, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    verdicts: dict[str, set[str]] = defaultdict(set)
    hows, spoke, sent_bytes = Counter[str](), set[str](), 0
    for dialect, records in languages(corpus):
        todo = [way for record in records for way in ways(record)]
        for start in range(0, len(todo), BATCH):
            for replay, entry in await replayed(deployment, dialect, todo[start : start + BATCH]):
                verdicts[replay.record["id"]].add(verdict(dialect, replay.record, entry))
                hows[replay.how] += 1
                sent_bytes += len(replay.body)
        spoke |= {dialect.name if dialect else records[0]["dialect"]}
    assert [name for name, said in verdicts.items() if len(said) > 1] == [], "the same at every chunking"
    found = Counter(said for one in verdicts.values() for said in one)
    with capsys.disabled():
        print(f"\n{_line(len(verdicts), spoke, hows, sent_bytes, found)} ({time.monotonic() - began:.0f} s)")
    assert left_out(corpus) == NOT_SPOKEN
    assert found == FOUND


def _line(records: int, spoke: set[str], hows: Counter[str], sent_bytes: int, found: Counter[str]) -> str:
    exceptions = ", ".join(f"{why}: {found[why]}" for why in NAMED.values() if found[why])
    return (
        f"{records} records of {len(spoke)} dialects, {hows.total()} replays ({sent_bytes / 1e6:.0f} MB; "
        f"{', '.join(f'{how}: {count}' for how, count in hows.items())}),\nall bytes equal ({OURS}: {found[OURS]}), "
        f"usage equal ({found[EQUAL]}) but for: {exceptions};\n"
        f"nothing to compare with: {UNTOLD}: {found[UNTOLD]}, {ERROR}: {found[ERROR]}; "
        f"{sum(NOT_SPOKEN.values())} records of {len(NOT_SPOKEN)} dialects are not supported"
    )
