"""How far each live stream has come: a memory-mapped file of fixed slots that survives `kill -9`.

Law: what is stored here before a write to the client is never less than what the client got. A slot is 48 words of
64 bits. A store of one aligned word through a cast memoryview is one 8-byte move, so that a kill cannot tear it; no
checksum is needed. Among the words of one slot the order of the stores is the guard: the id is written last at claim
and cleared first at release, and usage counts only while its flag is set. The words are counters and ids, never text.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from struct import Struct
from typing import Final
from uuid import UUID

from proxy.metering.usage import Evidence, Usage

SLOT_WORDS: Final = 48
SLOT_BYTES: Final = SLOT_WORDS * 8

# One slot per exchange in flight; as many as the gateway admits streams by default. 6 MiB of disk.
SLOTS: Final = 16_384

# The meaning of the words: changing it needs another number here, so that an old file is not misread. Where slots were
# shorter any counter may stand in its place: none counts so far.
LAYOUT: Final = 2**63 + 2

_EVIDENCE_NAMES: Final = tuple(field.name for field in fields(Evidence))
_TOKEN_NAMES: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")
_UNIT_NAMES: Final = tuple(name for name in Usage.__struct_fields__ if name not in _TOKEN_NAMES)

_ID_HIGH: Final = 0
"""0 = free"""
_ID_LOW: Final = 1
_EVENTS: Final = 2
_BYTES: Final = 3
_NOTED_EVENTS: Final = 4
_NOTED_AT_MS: Final = 5
_EVIDENCE: Final = 6
_USAGE: Final = _EVIDENCE + len(_EVIDENCE_NAMES)
"""each +1, so that 0 is None"""
_USAGE_KNOWN: Final = _USAGE + len(_TOKEN_NAMES)
_UNITS: Final = _USAGE_KNOWN + 1
"""as in _USAGE. Words that were always 0 before they had this meaning: what an older version wrote reads the same"""
_PLACES: Final = (*enumerate(_TOKEN_NAMES, _USAGE), *enumerate(_UNIT_NAMES, _UNITS))
_LAYOUT_AT: Final = SLOT_WORDS - 1
assert _UNITS + len(_UNIT_NAMES) <= _LAYOUT_AT, "a slot is too short"
_LOW_WORD: Final = (1 << 64) - 1

Words = memoryview  # of format "Q"
_NAME = Struct("=QQ")


class ProgressFull(Exception):  # noqa: N818 - a state, named like JournalFull
    """Every slot is taken: no exchange can be admitted now. It passes by itself."""


class ProgressBroken(Exception):  # noqa: N818 - named like JournalBroken
    """The table's file cannot be made or mapped."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a slot said when it was read."""

    exchange_id: str
    events: int
    """SSE events passed to the client, or about to be"""
    bytes: int
    """body bytes passed to the client, or about to be"""
    noted_events: int
    """events the meter had read when it last noted; 0 also if it never did"""
    noted_at: float
    """when that was, in Unix seconds; 0.0: never"""
    evidence: Evidence
    usage: Usage | None


class Slot:
    """One exchange's place in the table, from `claim` to `release`."""

    __slots__ = ("_table", "_words", "index")

    def __init__(self, table: ProgressTable, index: int, words: Words) -> None:
        self.index = index
        self._table = table
        self._words = words

    def deliver(self, events: int, size: int) -> None:
        """So many events and bytes, in all, are about to have been passed to the client. The hot path: two stores."""
        words = self._words
        words[_EVENTS] = events
        words[_BYTES] = size

    def note(self, evidence: Evidence, usage: Usage | None, events: int) -> None:
        """What the meter has read, all in all, after `events` events."""
        words = self._words
        # Evidence before the events it stands for: a kill in between estimates too much by one fold, never too little.
        for index, name in enumerate(_EVIDENCE_NAMES, _EVIDENCE):
            words[index] = getattr(evidence, name)
        words[_NOTED_EVENTS] = events
        words[_NOTED_AT_MS] = int(self._table.unix_time() * 1000)
        if usage is not None:
            words[_USAGE_KNOWN] = 0
            for index, name in _PLACES:
                count = getattr(usage, name)
                words[index] = 0 if count is None else count + 1
            words[_USAGE_KNOWN] = 1

    def release(self) -> None:
        """The exchange is closed in the journal: the slot may be claimed again. Later stores through this one raise."""
        self._words[_ID_HIGH] = 0
        self._words.release()
        self._table.take_back(self.index)


class ProgressTable:
    """All slots. The free list is in memory: what a crash left taken stays taken until `clear`."""

    def __init__(self, mapping: mmap.mmap, unix_time: Callable[[], float]) -> None:
        self.unix_time = unix_time
        self._mapping = mapping
        self._words: Words = memoryview(mapping).cast("Q")
        self._free = self._unclaimed()
        self._claimed = 0

    @classmethod
    def open(cls, path: Path, slots: int = SLOTS, *, unix_time: Callable[[], float]) -> ProgressTable:
        """Map the file, made with `slots` slots if it is new; an existing larger one keeps its size.

        All its blocks are allocated now: a store into a hole of a file on a full disk would kill us (SIGBUS).
        The caller holds the journal's lock, so that no other process uses the table. Raises ProgressBroken.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                held = os.fstat(fd).st_size // SLOT_BYTES
                size = max(held, slots) * SLOT_BYTES
                os.posix_fallocate(fd, 0, size)
                mapping = mmap.mmap(fd, size)
            finally:
                os.close(fd)
        except OSError as error:
            raise ProgressBroken(f"{path} cannot be made or mapped: {error.strerror}") from error
        return cls(mapping, unix_time)

    def claim(self, exchange_id: str) -> Slot:
        """A slot for this exchange (a UUID), with all counters at zero. Raises ProgressFull."""
        number = int(exchange_id.replace("-", ""), 16)
        assert number >> 64, "a high half of zero means free"
        if not self._free:
            raise ProgressFull("every progress slot is taken")
        index = self._free.pop()
        words = self._slot(index)
        words[:] = _EMPTY
        words[_LAYOUT_AT] = LAYOUT
        words[_ID_LOW] = number & _LOW_WORD
        words[_ID_HIGH] = number >> 64
        self._claimed += 1
        return Slot(self, index, words)

    def take_back(self, index: int) -> None:
        """The slot is free again; `Slot.release` says so."""
        self._claimed -= 1
        self._free.append(index)

    def read(self, index: int) -> Progress | None:
        """What slot `index` says; None if it is free, outside the table, or of another layout."""
        if not 0 <= index < self.slots:
            return None
        words = self._slot(index).tolist()
        return _said(words) if words[_ID_HIGH] and words[_LAYOUT_AT] == LAYOUT else None

    def raw(self, index: int) -> bytes:
        """The bytes of slot `index`: `decoded` reads them, `name_of` tells whose they are. Empty outside the table."""
        return self._slot(index).tobytes()

    def clear(self) -> None:
        """Free every slot that a crash left taken. Call it after recovery, before the first claim."""
        assert self._claimed == 0, "slots are in use"
        for index in range(self.slots):
            self._words[index * SLOT_WORDS + _ID_HIGH] = 0
        self._free = self._unclaimed()

    def close(self) -> None:
        """Unmap the file."""
        self._words.release()
        with suppress(BufferError):  # a slot that is still held keeps the mapping; the pages are the kernel's anyway
            self._mapping.close()

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self._words) // SLOT_WORDS

    @property
    def free(self) -> int:
        """How many can be claimed."""
        return len(self._free)

    def _slot(self, index: int) -> Words:
        return self._words[index * SLOT_WORDS : (index + 1) * SLOT_WORDS]

    def _unclaimed(self) -> list[int]:
        """Free slots, lowest last: that one is claimed first, so that few pages are touched."""
        taken = self._words[_ID_HIGH::SLOT_WORDS].tolist()
        return [index for index in range(len(taken) - 1, -1, -1) if not taken[index]]


_EMPTY: Final = memoryview(bytes(SLOT_BYTES)).cast("Q")


def name_of(exchange_id: str) -> bytes:
    """What the bytes of a slot begin with while it is this exchange's."""
    number = UUID(exchange_id).int
    return _NAME.pack(number >> 64, number & _LOW_WORD)


def decoded(raw: bytes) -> Progress:
    """What the bytes of a claimed slot say. Raises ValueError if they are of another layout, or of no slot at all.

    Words are in the machine's own order: bytes of a machine of the other order show another layout.
    """
    words = memoryview(raw).cast("Q").tolist() if len(raw) == SLOT_BYTES else []
    if not words or words[_LAYOUT_AT] != LAYOUT:
        raise ValueError(f"{len(raw)} bytes are no progress slot of layout {LAYOUT - 2**63}")
    return _said(words)


def _said(words: list[int]) -> Progress:
    counts = {name: words[index] - 1 for index, name in _PLACES if words[index]}
    return Progress(
        exchange_id=str(UUID(int=words[_ID_HIGH] << 64 | words[_ID_LOW])),
        events=words[_EVENTS],
        bytes=words[_BYTES],
        noted_events=words[_NOTED_EVENTS],
        noted_at=words[_NOTED_AT_MS] / 1000,
        evidence=Evidence(*words[_EVIDENCE:_USAGE]),
        usage=Usage(**counts) if words[_USAGE_KNOWN] else None,
    )
