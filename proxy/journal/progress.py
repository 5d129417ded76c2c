"""The progress of each running stream: a memory-mapped file of fixed slots that survives `kill -9`.

Invariants: counts are stored before the write to the client, and so are never below what the client received. A slot is
48 words of 64 bits. Aligned words are stored through a cast memoryview by moves of 8 bytes or more: a kill cannot tear
a word, and no checksum is needed. The order of the stores keeps a slot consistent: the id is written last at claim and
cleared first at release, and usage is valid only while its flag is set. The words are counters and ids, never text.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Final
from uuid import UUID

from proxy.metering.usage import NOT_RUNNING, NOTHING_SEEN, Evidence, Running, Seen, Usage, service_of

SLOT_WORDS: Final = 48
SLOT_BYTES: Final = SLOT_WORDS * 8

# One slot per exchange in flight: the gateway's default limit of streams. 6 MiB of disk.
SLOTS: Final = 16_384

# Version of the slot layout: changing the meaning of a word needs another number, so that an old file is not misread.
# In files with shorter slots, this word may be any counter: no counter reaches 2^63.
LAYOUT: Final = 2**63 + 2

_EVIDENCE_NAMES: Final = tuple(field.name for field in fields(Evidence))
_TOKEN_NAMES: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")
_UNIT_NAMES: Final = tuple(name for name in Usage.__struct_fields__ if name not in _TOKEN_NAMES)

_ID_HIGH: Final = 0
"""first word of the exchange's id; 0: the slot is free"""
_ID_LOW: Final = 1
_EVENTS: Final = 2
_BYTES: Final = 3
_NOTED_EVENTS: Final = 4
_NOTED_AT_MS: Final = 5
_EVIDENCE: Final = 6
_USAGE: Final = _EVIDENCE + len(_EVIDENCE_NAMES)
"""counts of the usage, each plus 1, so that 0 is None"""
_USAGE_KNOWN: Final = _USAGE + len(_TOKEN_NAMES)
"""lowest bit: the usage is known; the bits above it: `_seen_bits`, which older versions left 0"""
_UNITS: Final = _USAGE_KNOWN + 1
"""counts of billed units, each plus 1: the first ones in the low halves of these words, later ones in the high halves.
Older versions left both 0, which still reads as None"""
_EVIDENCE_OF, _TOKENS_OF, _UNITS_OF = (attrgetter(*names) for names in (_EVIDENCE_NAMES, _TOKEN_NAMES, _UNIT_NAMES))
_LAYOUT_AT: Final = SLOT_WORDS - 1
_RUNNING: Final = _LAYOUT_AT - 1
"""the relation of the usage to a running answer: in the low half `completion_tokens` plus 1, in the high half, without
its highest bit, `behind`. Older versions left this word 0, which reads as NOT_RUNNING"""
_HALF_BITS: Final = 32
_WAITS: Final = 1 << 63
"""highest bit of _RUNNING: there was no note yet, and _NOTED_AT_MS is the time of the last `wait`"""
_ROOM: Final = _RUNNING - _UNITS
assert _ROOM <= len(_UNIT_NAMES) <= 2 * _ROOM, "a slot is too short"
# Of a count: its name, its word, and the place of its lowest bit.
_USAGE_WORDS: Final = (
    *((name, index, 0) for index, name in enumerate(_TOKEN_NAMES, _USAGE)),
    *((name, _UNITS + at % _ROOM, at // _ROOM * _HALF_BITS) for at, name in enumerate(_UNIT_NAMES)),
)
# Terms of service and flags by their bits, after OTHER_WORD: to add one, append it.
_WORDS: Final = (
    "", "other", "default", "standard", "priority", "flex", "batch", "on_demand", "scale", "ultrafast", "fast",
    "performance", "reserved", "optimized", "global", "us", "eu", "not_available", "standard_only", "economy",
)  # fmt: skip
_FLAGS: Final = (
    "usage_invalid", "usage_conflict", "usage_decreased", "cache_within_input", "tool_prompt", "unread_text",
    "cumulative", "unknown_event", "unparsable_event", "audio_unknown",
)  # fmt: skip
_WORD_BITS, _UNIT_BITS = 6, 14
_UNIT_MAX: Final = (1 << _UNIT_BITS) - 1
_LOW_WORD: Final = (1 << 64) - 1

Words = memoryview  # of format "Q"
_NAME = Struct("=QQ")


class ProgressFull(Exception):  # noqa: N818 - a state, named like JournalFull
    """All slots are in use: no exchange can be admitted now. Temporary."""


class ProgressBroken(Exception):  # noqa: N818 - named like JournalBroken
    """The table's file cannot be created or mapped."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The content of a slot."""

    exchange_id: str
    events: int
    """SSE events that were written to the client, or are about to be written"""
    bytes: int
    """body bytes that were written to the client, or are about to be written"""
    noted_events: int
    """events that the meter had read at its last `note`; 0 also without a note"""
    noted_at: float
    """Unix seconds of the last `note`, or of a `wait` after it; 0.0: there was no note"""
    evidence: Evidence
    usage: Usage | None
    running: Running = NOT_RUNNING
    """the relation of the usage to a running answer"""
    waited_at: float = 0.0
    """Unix seconds of the last `wait` before the first note; 0.0: none"""
    seen: Seen = NOTHING_SEEN

    @property
    def last_at(self) -> float:
        """Unix seconds of the last note or wait; 0.0: none."""
        return max(self.noted_at, self.waited_at)


def _running_word(running: Running) -> int:
    so_far, behind = running
    return min(behind, _HALF_MAX >> 1) << _HALF_BITS | (0 if so_far is None else so_far + 1)


_HALF_MAX: Final = (1 << _HALF_BITS) - 1


def _seen_bits(seen: Seen) -> int:
    """Flags, images, unknown items, geography, speed and tier, the last one lowest, above the bit of the usage."""
    flags = seen.flags
    bits = sum(1 << at for at, flag in enumerate(_FLAGS) if flag in flags) if flags else 0
    for units in (seen.images, seen.unknown_items):
        bits = bits << _UNIT_BITS | min(units, _UNIT_MAX)
    served_as = seen.served_as
    for word in (served_as.geography, served_as.speed, served_as.service_tier):
        bits = bits << _WORD_BITS | (0 if word is None else _WORDS.index(word) if word in _WORDS else 1)
    return bits << 1


def _seen(bits: int) -> Seen:
    if not (bits := bits >> 1):
        return NOTHING_SEEN
    words = [_WORDS[min(bits >> at * _WORD_BITS & (1 << _WORD_BITS) - 1, len(_WORDS) - 1)] for at in range(3)]
    bits >>= 3 * _WORD_BITS
    flags = tuple(flag for at, flag in enumerate(_FLAGS) if bits >> 2 * _UNIT_BITS + at & 1)
    return Seen(service_of(words[0], words[1], words[2]), bits >> _UNIT_BITS & _UNIT_MAX, bits & _UNIT_MAX, flags)


def _known(counts: tuple[int | None, ...]) -> array[int]:
    return array("Q", [0 if count is None else count + 1 for count in counts])


def _units(counts: tuple[int | None, ...]) -> array[int]:
    words = _known(counts[:_ROOM])
    for at, count in enumerate(counts[_ROOM:]):
        words[at] |= 0 if count is None else count + 1 << _HALF_BITS
    return words


_NONE: Final = (None,) * len(_UNIT_NAMES)
_NO_UNITS: Final = _units(_NONE)


class Slot:
    """The slot of one exchange, from `claim` to `release`."""

    __slots__ = ("_table", "_words", "index")

    def __init__(self, table: ProgressTable, index: int, words: Words) -> None:
        self.index = index
        self._table = table
        self._words = words

    def deliver(self, events: int, size: int) -> None:
        """Store the totals of events and bytes, before they are written to the client. Hot path: two stores."""
        words = self._words
        words[_EVENTS] = events
        words[_BYTES] = size

    def note(
        self,
        evidence: Evidence,
        usage: Usage | None,
        events: int,
        running: Running = NOT_RUNNING,
        seen: Seen = NOTHING_SEEN,
    ) -> None:
        """Store the meter's totals after `events` events. `running`: the relation of the usage to the answer."""
        bits = 0 if seen is NOTHING_SEEN else _seen_bits(seen)
        words = self._words
        # Evidence before its event count: a kill in between makes the estimate too high by one note, never too low.
        words[_EVIDENCE:_USAGE] = array("Q", _EVIDENCE_OF(evidence))
        words[_NOTED_EVENTS] = events
        words[_NOTED_AT_MS] = int(self._table.unix_time() * 1000)
        if usage is None:
            words[_RUNNING] = 0
            words[_USAGE_KNOWN] = bits
        else:
            words[_USAGE_KNOWN] = bits
            words[_USAGE:_USAGE_KNOWN] = _known(_TOKENS_OF(usage))
            units = _UNITS_OF(usage)
            words[_UNITS:_RUNNING] = _NO_UNITS if units == _NONE else _units(units)  # as nearly all have
            words[_RUNNING] = 0 if running is NOT_RUNNING else _running_word(running)
            words[_USAGE_KNOWN] = bits | 1

    def wait(self) -> None:
        """Store that the exchange still waits for its first output."""
        words = self._words
        if not words[_NOTED_AT_MS]:
            words[_RUNNING] = _WAITS
        words[_NOTED_AT_MS] = int(self._table.unix_time() * 1000)

    def release(self) -> None:
        """Free the slot, once the journal has closed the exchange. Later stores through this object raise."""
        self._words[_ID_HIGH] = 0
        self._words.release()
        self._table.take_back(self.index)


class ProgressTable:
    """All slots. The free list is in memory: slots that a crash left claimed stay claimed until `clear`."""

    def __init__(self, mapping: mmap.mmap, unix_time: Callable[[], float]) -> None:
        self.unix_time = unix_time
        self._mapping = mapping
        self._words: Words = memoryview(mapping).cast("Q")
        self._free = self._unclaimed()
        self._claimed = 0

    @classmethod
    def open(cls, path: Path, slots: int = SLOTS, *, unix_time: Callable[[], float]) -> ProgressTable:
        """Map the file; a new one gets `slots` slots, an existing larger one keeps its size.

        All blocks are allocated now: on a full disk, a store into a hole of the file would kill the process (SIGBUS).
        The caller holds the journal's lock, so that no other process uses the table. Raises ProgressBroken.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                existing = os.fstat(fd).st_size // SLOT_BYTES
                size = max(existing, slots) * SLOT_BYTES
                os.posix_fallocate(fd, 0, size)
                mapping = mmap.mmap(fd, size)
            finally:
                os.close(fd)
        except OSError as error:
            raise ProgressBroken(f"{path} cannot be created or mapped: {error.strerror}") from error
        return cls(mapping, unix_time)

    def claim(self, exchange_id: str) -> Slot:
        """A slot for this exchange (a UUID), with all counters at zero. Raises ProgressFull."""
        number = int(exchange_id.replace("-", ""), 16)
        assert number >> 64, "a high half of zero means free"
        if not self._free:
            raise ProgressFull("all progress slots are in use")
        index = self._free.pop()
        words = self._slot(index)
        words[:] = _EMPTY
        words[_LAYOUT_AT] = LAYOUT
        words[_ID_LOW] = number & _LOW_WORD
        words[_ID_HIGH] = number >> 64
        self._claimed += 1
        return Slot(self, index, words)

    def take_back(self, index: int) -> None:
        """Return a slot to the free list; called by `Slot.release`."""
        self._claimed -= 1
        self._free.append(index)

    def read(self, index: int) -> Progress | None:
        """The content of slot `index`; None if the slot is free, outside the table, or of another layout."""
        if not 0 <= index < self.slots:
            return None
        words = self._slot(index).tolist()
        return _progress(words) if words[_ID_HIGH] and words[_LAYOUT_AT] == LAYOUT else None

    def raw(self, index: int) -> bytes:
        """The bytes of slot `index`, for `decoded`; they begin with `name_of` its exchange. Empty outside the table."""
        return self._slot(index).tobytes()

    def clear(self, keep: Collection[int] = ()) -> list[Slot]:
        """Free the slots that a crash left claimed. Call it after recovery, before the first claim.

        `keep`: slots of exchanges whose records the journal could not write yet; they are returned, for `release`.
        """
        assert self._claimed == 0, "slots are in use"
        kept = [index for index in sorted(keep) if self.read(index) is not None]
        for index in range(self.slots):
            if index not in kept:
                self._words[index * SLOT_WORDS + _ID_HIGH] = 0
        self._free = self._unclaimed()
        self._claimed = len(kept)
        return [Slot(self, index, self._slot(index)) for index in kept]

    def close(self) -> None:
        """Unmap the file."""
        self._words.release()
        with suppress(BufferError):  # a slot in use keeps the mapping; the kernel writes the pages either way
            self._mapping.close()

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self._words) // SLOT_WORDS

    @property
    def free(self) -> int:
        """The number of free slots."""
        return len(self._free)

    def _slot(self, index: int) -> Words:
        return self._words[index * SLOT_WORDS : (index + 1) * SLOT_WORDS]

    def _unclaimed(self) -> list[int]:
        """Free slots, lowest last: it is claimed first, so that few pages are used."""
        taken = self._words[_ID_HIGH::SLOT_WORDS].tolist()
        return [index for index in range(len(taken) - 1, -1, -1) if not taken[index]]


_EMPTY: Final = memoryview(bytes(SLOT_BYTES)).cast("Q")


def name_of(exchange_id: str) -> bytes:
    """The first bytes of a slot that this exchange has claimed."""
    number = UUID(exchange_id).int
    return _NAME.pack(number >> 64, number & _LOW_WORD)


def decoded(raw: bytes) -> Progress:
    """The content of a claimed slot's bytes. Raises ValueError for another layout or length.

    Words are in native byte order: bytes from a machine of the other order show another layout.
    """
    words = memoryview(raw).cast("Q").tolist() if len(raw) == SLOT_BYTES else []
    if not words or words[_LAYOUT_AT] != LAYOUT:
        raise ValueError(f"{len(raw)} bytes are not a progress slot of layout {LAYOUT - 2**63}")
    return _progress(words)


def _progress(words: list[int]) -> Progress:
    running, noted_at = words[_RUNNING] & ~_WAITS, words[_NOTED_AT_MS] / 1000
    waits = running != words[_RUNNING]
    counts = {name: word - 1 for name, at, bit in _USAGE_WORDS if (word := words[at] >> bit & _HALF_MAX)}
    return Progress(
        exchange_id=str(UUID(int=words[_ID_HIGH] << 64 | words[_ID_LOW])),
        events=words[_EVENTS],
        bytes=words[_BYTES],
        noted_events=words[_NOTED_EVENTS],
        noted_at=0.0 if waits else noted_at,
        evidence=Evidence(*words[_EVIDENCE:_USAGE]),
        usage=Usage(**counts) if words[_USAGE_KNOWN] & 1 else None,
        running=Running((running & _HALF_MAX) - 1 if running & _HALF_MAX else None, running >> _HALF_BITS),
        waited_at=noted_at if waits else 0.0,
        seen=_seen(words[_USAGE_KNOWN]),
    )
