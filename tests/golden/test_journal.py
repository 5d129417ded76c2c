"""Segments, node and progress table of 0.1: today's code reads them, and writes the same bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.journal.frames import (
    FrameKind,
    decode_opened,
    decode_record,
    decode_seqs,
    encode_frame,
    opened_payload,
    record_payload,
    scan,
    settled_payload,
)
from proxy.journal.journal import Journal
from proxy.journal.progress import ProgressTable
from proxy.journal.recovery import recover
from proxy.metering.usage import Evidence, Usage
from tests.golden.reading import BEGAN, HERE, NODE, FourCharacters, exchange_id, golden_json

SEGMENTS = sorted((HERE / "journal").glob("*.log"))
EPOCH_1, EPOCH_2 = 1 << 40, 2 << 40

# seq: exchange, outcome, source, what is billed, events, prompt, completion and total tokens
PENDING = {
    EPOCH_1 + 13: (1, "served", "reported", "prompt+output", 31, 1_100, 290, 1_390),
    EPOCH_2 + 1: (2, "served", "reported", "prompt+output", 31, 1_100, 290, 1_390),
    EPOCH_2 + 2: (3, "served", "reported", "prompt+output", 31, 2_000, 900, 2_900),
    EPOCH_2 + 3: (4, "served", "reported", "prompt+output", 31, 130_000, 10, 130_010),
    EPOCH_2 + 4: (5, "client_left", "estimated", "prompt+output", 31, 17, 64, 81),
    EPOCH_2 + 5: (6, "upstream_failed", "estimated", "prompt", 31, 17, 5, 22),
    EPOCH_2 + 6: (7, "upstream_stalled", "estimated", "output", 0, 17, 5, 22),
    EPOCH_2 + 7: (8, "budget_cut", "reported", "prompt+output", 31, 1_100, 290, 1_390),
    EPOCH_2 + 8: (9, "shut_down", "none", "nothing", 0, None, None, None),
    EPOCH_2 + 9: (10, "served", "reported", "prompt+output", 31, 1_100, 290, 1_390),
    EPOCH_2 + 10: (11, "served", "reported", "prompt+output", 0, None, None, None),
    EPOCH_2 + 11: (12, "refused_upstream", "none", "nothing", 31, None, None, None),
    EPOCH_2 + 12: (13, "served", "reported", "prompt+output", 31, 1_100, 290, 1_390),
}
ALL_UNITS = Usage(
    prompt_tokens=2_000,
    cached_tokens=400,
    completion_tokens=900,
    reasoning_tokens=300,
    total_tokens=2_900,
    cache_write_tokens=600,
    cache_write_1h_tokens=200,
    audio_prompt_tokens=50,
    audio_completion_tokens=60,
    images=2,
    audio_ms=61_500,
    characters=1_234,
    searches=3,
    unbilled_prompt_tokens=10,
    unbilled_completion_tokens=20,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder as a proxy of 0.1 left it when it was killed."""
    shutil.copytree(HERE / "journal", tmp_path / "journal")
    shutil.copy(HERE / "progress.table", tmp_path)
    return tmp_path


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    opened = Journal.open(folder / "journal", bytes_max=1 << 30)
    yield opened
    opened.close()


@pytest.fixture
def table(folder: Path) -> Iterator[ProgressTable]:
    opened = ProgressTable.open(folder / "progress.table", 8, unix_time=lambda: 0.0)
    yield opened
    opened.close()


def test_the_journal_replays(journal: Journal, folder: Path) -> None:
    assert journal.damage == []
    assert journal.torn_bytes == 100
    assert (journal.node.node_id, journal.node.epoch) == (NODE, 3)
    assert (folder / "journal" / "node.json").read_text() == f'{{"node_id":"{NODE}","epoch":3}}'
    found = {one.seq: one.record for one in journal.pending(100)}
    assert {
        seq: (
            int(one.opened.exchange_id[-12:], 16),
            one.outcome.value,
            one.reading.source.value,
            one.bills.value,
            one.events,
            one.reading.usage.prompt_tokens,
            one.reading.usage.completion_tokens,
            one.reading.usage.total_tokens,
        )
        for seq, one in found.items()
    } == PENDING


def test_a_record_says_what_it_said(journal: Journal) -> None:
    found = {number: one.record for (number, *_), one in zip(PENDING.values(), journal.pending(100), strict=True)}
    rich = found[3]
    assert rich.reading.usage == ALL_UNITS
    assert rich.reading.service_tier == "priority"
    assert rich.opened.price is not None
    assert rich.opened.price.tiers[1].above_prompt_tokens == 128_000
    assert rich.opened.price.service_tiers["priority"][0].output == 20_000_000_000
    assert rich.opened.price.tiers[0].cache_write_1h == 5_000_000_000
    assert found[4].opened.reserved_nusd == 1_234_567_890
    guessed = found[5].reading
    assert (guessed.estimator, guessed.expected_error, guessed.capped, guessed.hidden_tokens) == (
        "ridge-2", 0.25, True, 12,
    )  # fmt: skip
    assert found[6].opened.bill == {"failed_after_content": "prompt"}
    assert [(one.provider, one.failed, one.status, one.duration_ms) for one in found[10].opened.attempts] == [
        ("tera", "connection refused", None, 12.5),
        ("giga", "HTTP 503", 503, 250.0),
        ("mega", "HTTP 429", 429, 31.25),
    ]
    assert (found[13].opened.model, found[13].finish_reason) == ("häuser/größe", "?broken")
    first = found[1]
    assert (first.opened.started_at, first.duration_ms, first.first_token_ms) == (BEGAN + 1, 1_234.567, 0.1)
    assert (first.opened.key_id, first.opened.key_alias, first.bytes) == ("key_golden", "häuser", 8_765)


def test_what_a_crash_left_open_is_recovered(journal: Journal, table: ProgressTable) -> None:
    unfinished = journal.unfinished()
    assert [one.exchange_id for one in unfinished] == [exchange_id(number) for number in (23, 20, 21, 22, 24)]
    records = recover(unfinished, table, FourCharacters())
    assert json.loads(msgspec.json.encode(records)) == golden_json("recovered.json")
    for one in records:
        journal.finish(one)
    assert journal.open_count == 0
    assert journal.depth == len(PENDING) + 5


def test_the_progress_table_is_read(table: ProgressTable) -> None:
    found = [table.read(index) for index in range(table.slots)]
    assert [None if one is None else one.exchange_id for one in found] == [
        *map(exchange_id, (20, 21, 22, 99)), exchange_id(24), None, None, None,
    ]  # fmt: skip
    first, second, third, *_ = found
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.events, first.bytes, first.noted_events, first.noted_at) == (12, 4_000, 10, BEGAN + 40)
    assert first.evidence == Evidence(text_events=9, chars_latin=90)
    assert first.usage == ALL_UNITS
    assert (second.evidence.tool_calls, second.evidence.marks, second.evidence.chars_hangul) == (3, 10, 16)
    assert second.usage == Usage(prompt_tokens=15, completion_tokens=3)
    assert (third.events, third.bytes, third.noted_at, third.usage) == (3, 900, 0.0, None)


def test_the_progress_table_is_written_the_same(tmp_path: Path) -> None:
    times = iter([BEGAN + 40, BEGAN + 41])
    table = ProgressTable.open(tmp_path / "table", 8, unix_time=lambda: next(times))
    slots = [table.claim(exchange_id(number)) for number in (20, 21, 22, 99, 24)]
    slots[0].deliver(12, 4_000)
    slots[0].note(Evidence(text_events=9, chars_latin=90), ALL_UNITS, 10)
    slots[1].deliver(40, 12_000)
    slots[1].note(Evidence(*range(1, 17)), Usage(15, None, 3), 20)
    slots[2].deliver(3, 900)
    assert (tmp_path / "table").read_bytes() == (HERE / "progress.table").read_bytes()


AGAIN: dict[int, Callable[[bytes], Any]] = {
    FrameKind.OPEN: lambda payload: opened_payload(decode_opened(payload)),
    FrameKind.CLOSE: lambda payload: record_payload(decode_record(payload)),
    FrameKind.SETTLED: lambda payload: settled_payload(decode_seqs(payload)),
}


@pytest.mark.parametrize("path", SEGMENTS, ids=lambda path: path.name)
def test_frames_are_written_the_same(path: Path) -> None:
    image = path.read_bytes()
    found = scan(image)
    assert found.gaps == []
    again = b"".join(encode_frame(one.kind, one.seq, AGAIN[one.kind](one.payload)) for one in found.frames)
    assert again == image[: len(image) - found.torn_bytes]


def test_frames_of_every_kind_are_there() -> None:
    assert {one.kind for path in SEGMENTS for one in scan(path.read_bytes()).frames} == {1, 2, 3}
    assert len(SEGMENTS) == 5
