"""The progress table: what was stored is there for whoever opens the file next."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.journal import progress
from proxy.journal.progress import (
    SLOT_BYTES,
    Progress,
    ProgressBroken,
    ProgressFull,
    ProgressTable,
    Slot,
    decoded,
    name_of,
)
from proxy.metering.usage import NOT_RUNNING, TOKENS_MAX, Evidence, Running, Seen, ServedAs, Usage, service_of
from tests.journal.records import exchange_id

COUNT = st.integers(0, 2**63)
TOKENS = st.none() | st.integers(0, TOKENS_MAX)


def make(path: Path, slots: int = 8) -> ProgressTable:
    return ProgressTable.open(path, slots, unix_time=lambda: 1_790_000_000.125)


@pytest.fixture
def table(tmp_path: Path) -> ProgressTable:
    return make(tmp_path / "p")


def stored(table: ProgressTable, slot: Slot) -> Progress:
    progress = table.read(slot.index)
    assert progress is not None
    return progress


def test_a_slot_is_read_back_by_the_next_process(tmp_path: Path) -> None:
    slot = make(tmp_path / "p").claim(exchange_id(5))
    evidence = Evidence(1, 2, 3, 4, 5, 6, 7, 8)
    slot.note(evidence, Usage(10, None, 0, 3, 13), 30)
    slot.deliver(31, 4_096)
    progress = stored(make(tmp_path / "p"), slot)
    assert (progress.exchange_id, progress.events, progress.bytes) == (exchange_id(5), 31, 4_096)
    assert (progress.noted_events, progress.noted_at) == (30, 1_790_000_000.125)
    assert (progress.evidence, progress.usage) == (evidence, Usage(10, None, 0, 3, 13))


@given(st.lists(COUNT, min_size=8, max_size=8), st.lists(TOKENS, min_size=13, max_size=13), COUNT, COUNT)
def test_every_value_comes_back(
    one_table: ProgressTable, counts: list[int], tokens: list[int | None], events: int, size: int
) -> None:
    slot = one_table.claim(exchange_id(1))
    slot.note(Evidence(*counts), Usage(*tokens), events)
    slot.deliver(events, size)
    progress = stored(one_table, slot)
    slot.release()
    assert (progress.evidence, progress.usage) == (Evidence(*counts), Usage(*tokens))
    assert (progress.events, progress.bytes, progress.noted_events) == (events, size, events)


@pytest.fixture(scope="module")
def one_table(tmp_path_factory: pytest.TempPathFactory) -> ProgressTable:
    return make(tmp_path_factory.mktemp("progress") / "p")


def test_a_new_slot_knows_nothing_of_the_one_before(tmp_path: Path) -> None:
    table = make(tmp_path / "p", slots=1)
    slot = table.claim(exchange_id(1))
    slot.note(Evidence(chars_latin=9), Usage(1, 2, 3, 4, 5), 6)
    slot.deliver(7, 8)
    slot.release()
    progress = stored(table, table.claim(exchange_id(2)))
    assert (progress.exchange_id, progress.events, progress.bytes, progress.noted_events) == (exchange_id(2), 0, 0, 0)
    assert (progress.evidence, progress.usage, progress.noted_at) == (Evidence(), None, 0.0)


@pytest.mark.parametrize(
    ("running", "read"),
    [
        (Running(), NOT_RUNNING),
        (Running(0), Running(0)),
        (Running(None, 7), Running(None, 7)),
        (Running(TOKENS_MAX, 1 << 20), Running(TOKENS_MAX, 1 << 20)),
        (Running(5, 1 << 40), Running(5, (1 << 31) - 1)),
    ],
)
def test_how_a_usage_is_related_to_the_answer_comes_back(table: ProgressTable, running: Running, read: Running) -> None:
    slot = table.claim(exchange_id(1))
    slot.note(Evidence(), Usage(9), 1, running)
    progress = stored(table, slot)
    assert (progress.usage, progress.running) == (Usage(9), read)
    slot.note(Evidence(), Usage(9, None, 3), 2)
    assert stored(table, slot).running == NOT_RUNNING


def test_a_wait_is_a_sign_of_life(table: ProgressTable) -> None:
    slot = table.claim(exchange_id(1))
    progress = stored(table, slot)
    assert (progress.waited_at, progress.last_at) == (0.0, 0.0)
    slot.wait()
    progress = stored(table, slot)
    assert (progress.waited_at, progress.noted_at, progress.last_at) == (1_790_000_000.125, 0.0, 1_790_000_000.125)
    for life in (lambda: slot.note(Evidence(), None, 1), slot.wait):
        life()
        progress = stored(table, slot)
        assert (progress.waited_at, progress.noted_at, progress.running) == (0.0, 1_790_000_000.125, NOT_RUNNING)


def test_usage_none_is_not_usage_zero(table: ProgressTable) -> None:
    slots = [table.claim(exchange_id(number)) for number in range(3)]
    for slot, usage in zip(slots, (None, Usage(), Usage(0, 0, 0, 0, 0)), strict=True):
        slot.note(Evidence(), usage, 1)
    read = [table.read(slot.index) for slot in slots]
    assert [progress.usage for progress in read if progress] == [None, Usage(), Usage(0, 0, 0, 0, 0)]


@given(
    st.builds(service_of, *[st.sampled_from((None, *progress._WORDS[2:]))] * 3),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
    st.sets(st.sampled_from(progress._FLAGS)),
    st.none() | st.builds(Usage, TOKENS),
)
def test_what_was_seen_comes_back_beside_any_usage(
    one_table: ProgressTable, served_as: ServedAs, images: int, items: int, flags: set[str], usage: Usage | None
) -> None:
    slot = one_table.claim(exchange_id(1))
    slot.note(Evidence(), usage, 1, seen=Seen(served_as, images, items, flags))
    read = stored(one_table, slot)
    slot.release()
    most = progress._UNIT_MAX
    assert read.seen._replace(flags=set(read.seen.flags)) == Seen(served_as, min(images, most), min(items, most), flags)
    assert read.usage == usage


def test_a_unit_beyond_the_last_word_is_in_the_high_half_of_the_first(table: ProgressTable) -> None:
    """No unit is there yet: the next row of the table of units is."""
    room = range(1, progress._ROOM + 1)
    words = progress._units((*room, 7))
    assert [word & 0xFFFF_FFFF for word in words] == [count + 1 for count in room]
    assert [word >> 32 for word in words] == [8] + [0] * (progress._ROOM - 1)
    slot = table.claim(exchange_id(1))
    slot.note(Evidence(), Usage(1, images=3), 1)
    slot._words[progress._UNITS] |= 8 << 32  # by a later version
    assert stored(table, slot).usage == Usage(1, images=3)


def test_a_usage_that_was_half_written_does_not_count(table: ProgressTable) -> None:
    """The instant between two stores, made by a value that the second store refuses."""
    slot = table.claim(exchange_id(1))
    slot.note(Evidence(), Usage(1, 1, 1, 1, 1), 1)
    with pytest.raises(OverflowError):
        slot.note(Evidence(), Usage(2, 2, 2, 2, 2, searches=-5), 2)
    assert stored(table, slot).usage is None


def test_a_released_slot_is_free_and_takes_no_more_stores(table: ProgressTable) -> None:
    slot = table.claim(exchange_id(1))
    assert table.free == 7
    slot.release()
    assert (table.free, table.read(slot.index)) == (8, None)
    with pytest.raises(ValueError, match="released"):
        slot.deliver(1, 1)


def test_when_every_slot_is_taken_it_says_so(tmp_path: Path) -> None:
    table = make(tmp_path / "p", slots=2)
    slots = [table.claim(exchange_id(number)) for number in range(2)]
    with pytest.raises(ProgressFull):
        table.claim(exchange_id(9))
    slots[0].release()
    assert table.claim(exchange_id(9)).index == slots[0].index


def test_what_a_crash_left_taken_stays_until_it_is_cleared(tmp_path: Path) -> None:
    slot = make(tmp_path / "p", slots=2).claim(exchange_id(1))
    table = make(tmp_path / "p", slots=2)
    other = table.claim(exchange_id(2))
    assert other.index != slot.index
    with pytest.raises(ProgressFull):
        table.claim(exchange_id(3))
    other.release()
    table.clear()
    assert (table.free, table.read(slot.index)) == (2, None)


def test_the_file_is_whole_on_the_disk_private_and_never_shrinks(tmp_path: Path) -> None:
    make(tmp_path / "p", slots=64).close()
    stat = (tmp_path / "p").stat()
    assert (stat.st_size, stat.st_mode & 0o777) == (64 * SLOT_BYTES, 0o600)
    assert stat.st_blocks * 512 >= stat.st_size, "no holes: a store into one on a full disk is SIGBUS"
    table = make(tmp_path / "p", slots=8)
    assert table.slots == 64
    assert make(tmp_path / "p", slots=128).slots == 128


def test_a_file_of_another_layout_or_of_rubbish_is_not_misread(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"\xff" * (8 * SLOT_BYTES + 100))
    table = make(tmp_path / "p")
    assert [table.read(index) for index in (-1, 0, 7, 8, 10**9)] == [None] * 5
    table.clear()
    assert table.free == 8


def test_the_bytes_of_a_slot_say_elsewhere_what_it_says_here(table: ProgressTable) -> None:
    slot = table.claim(exchange_id(5))
    slot.note(Evidence(1, 2, 3, 4, 5, 6, 7, 8), Usage(10, None, 0, 3, 13), 30)
    slot.deliver(31, 4_096)
    raw = table.raw(slot.index)
    assert decoded(raw) == table.read(slot.index)
    assert raw.startswith(name_of(exchange_id(5)))
    slot.release()
    assert not table.raw(slot.index).startswith(name_of(exchange_id(5)))


@pytest.mark.parametrize("raw", [b"", b"x", b"\xff" * SLOT_BYTES, bytes(SLOT_BYTES), bytes(SLOT_BYTES + 8)])
def test_bytes_that_are_no_slot_of_this_layout_are_not_misread(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not a progress slot of layout"):
        decoded(raw)


def test_a_place_that_cannot_be_written_is_a_clear_no(tmp_path: Path) -> None:
    with pytest.raises(ProgressBroken, match="cannot be created or mapped"):
        make(tmp_path / "absent" / "p")


def test_closing_with_a_slot_in_use_does_no_harm(table: ProgressTable, tmp_path: Path) -> None:
    slot = table.claim(exchange_id(1))
    table.close()
    slot.deliver(3, 4)
    assert stored(make(tmp_path / "p"), slot).events == 3
