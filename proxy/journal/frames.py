"""Encodes and decodes the journal's frames, and finds them in a damaged file. Pure: bytes in, values out.

A frame is `magic · length · ~length · crc32 · kind · seq · payload`, little-endian. The payload is JSON, hence UTF-8,
and the magic contains bytes that UTF-8 never uses: no model or key name can forge a frame. The length is written
twice, once inverted, which distinguishes a flipped bit in it from a torn tail. The CRC covers kind, seq and payload.

Invariant: for any bytes, `scan` terminates, raises nothing, and returns no frame that was not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, TypeVar
from zlib import crc32

import msgspec
from msgspec import structs

from proxy.billing.details import EntryDetails
from proxy.billing.record import Opened, RecordEnvelope, UsageRecord

MAGIC = b"\xffTW\xff"
_HEAD = Struct("<4sIII")
_TAIL = Struct("<BQ")
_WHOLE_HEAD = Struct("<4sIIIBQ")
HEADER_BYTES = _HEAD.size + _TAIL.size

# The largest record of all recorded provider exchanges is below 4 KiB; a length below 1 MiB fits 20 bits.
PAYLOAD_BYTES_MAX = (1 << 20) - 1 - HEADER_BYTES

# Newest version of UsageRecord that this code can read; a higher one is quarantined, never guessed at.
RECORD_VERSION = 1

_LENGTH_MASK = 0xFFFFFFFF
_T = TypeVar("_T")


class FrameKind(IntEnum):
    """The type of a frame's payload."""

    OPEN = 1
    """An exchange was admitted; payload: `Opened`."""
    CLOSE = 2
    """An exchange ended; payload: `UsageRecord`."""
    SETTLED = 3
    """The ledger has recorded these CLOSE frames; payload: list of their seqs."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One valid frame of a segment; `offset` and `length` (header included) in bytes; `kind` may be unknown here."""

    offset: int
    length: int
    kind: int
    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of one segment."""

    frames: list[Frame]
    gaps: list[tuple[int, int]]
    """(offset, length) of bytes that are not a frame"""
    torn_bytes: int
    """length of the incomplete frame at the end: normal after a crash"""


_ENCODER = msgspec.json.Encoder()
_OPENED = msgspec.json.Decoder(Opened)
_OPENED_EXCHANGE = msgspec.json.Decoder(RecordEnvelope.Of)
_RECORD = msgspec.json.Decoder(UsageRecord)
_ENVELOPE = msgspec.json.Decoder(RecordEnvelope)
_SEQS = msgspec.json.Decoder(list[int])


class UndecodableError(ValueError):
    """A payload that this version cannot read: it is quarantined for a version that can."""


def encode_frame(kind: int, seq: int, payload: bytes) -> bytes:
    """The bytes of one frame."""
    length = len(payload)
    assert length <= PAYLOAD_BYTES_MAX, "payload too long for a frame"
    tail = _TAIL.pack(kind, seq)
    return b"".join((_HEAD.pack(MAGIC, length, length ^ _LENGTH_MASK, crc32(payload, crc32(tail))), tail, payload))


def frame_at(image: bytes, offset: int) -> Frame | None:
    """The frame that begins at `offset`, or None if there is no complete, valid frame."""
    start = offset + HEADER_BYTES
    if len(image) < start:
        return None
    magic, length, inverse, crc, kind, seq = _WHOLE_HEAD.unpack_from(image, offset)
    if magic != MAGIC or length != inverse ^ _LENGTH_MASK or length > PAYLOAD_BYTES_MAX:
        return None
    end = start + length
    checked = image[offset + _HEAD.size : end]
    if end > len(image) or crc32(checked) != crc:
        return None
    return Frame(offset, HEADER_BYTES + length, kind, seq, checked[_TAIL.size :])


def scan(image: bytes) -> Scan:
    """All valid frames in order; after damaged bytes the scan continues at the next valid frame."""
    frames: list[Frame] = []
    gaps: list[tuple[int, int]] = []
    offset = 0
    while offset < len(image):
        frame = frame_at(image, offset) or _next_frame(image, offset + 1)
        if frame is None and _is_torn(image, offset):
            return Scan(frames, gaps, len(image) - offset)
        end = len(image) if frame is None else frame.offset
        if end > offset:
            gaps.append((offset, end - offset))
        if frame is None:
            break
        frames.append(frame)
        offset = end + frame.length
    return Scan(frames, gaps, 0)


def _next_frame(image: bytes, offset: int) -> Frame | None:
    """The first valid frame at or after `offset`."""
    while (offset := image.find(MAGIC, offset)) >= 0:
        if frame := frame_at(image, offset):
            return frame
        offset += 1
    return None


def _is_torn(image: bytes, offset: int) -> bool:
    """True if the rest of the image is the beginning of one incomplete frame."""
    rest = len(image) - offset
    if rest < _HEAD.size:
        return image.startswith(MAGIC[:rest], offset) if rest < len(MAGIC) else image.startswith(MAGIC, offset)
    magic, length, inverse, _ = _HEAD.unpack_from(image, offset)
    whole: bool = magic == MAGIC and length == inverse ^ _LENGTH_MASK and length <= PAYLOAD_BYTES_MAX
    return whole and rest < HEADER_BYTES + length


def opened_payload(opened: Opened) -> bytes:
    """`Opened` → JSON. Raises ValueError if it is too long, or a name in it cannot be encoded as UTF-8."""
    payload = _ENCODER.encode(opened)
    if len(payload) > PAYLOAD_BYTES_MAX // 2:  # the record repeats it and must fit too
        raise ValueError(
            f"the exchange's description has {len(payload)} bytes; the journal takes {PAYLOAD_BYTES_MAX // 2}"
        )
    return payload


def record_payload(record: UsageRecord) -> bytes:
    """`UsageRecord` → JSON. Never fails: provider texts and details that cannot be encoded are replaced.

    Every count is kept. (A provider may send lone surrogates, which JSON allows and UTF-8 does not.)
    """
    try:
        payload = _ENCODER.encode(record)
    except (UnicodeEncodeError, TypeError, RecursionError):
        payload = _ENCODER.encode(_encodable(record))
    if len(payload) > PAYLOAD_BYTES_MAX:
        payload = _ENCODER.encode(
            structs.replace(_encodable(record), details=EntryDetails(details_dropped=len(payload)).stored())
        )
    return payload


def _encodable(record: UsageRecord) -> UsageRecord:
    return structs.replace(
        record,
        finish_reason=_text(record.finish_reason),
        provider_response_id=_text(record.provider_response_id),
        details=_details(record.details),
    )


# Known finish reasons and response ids have up to 64 characters; longer texts are cut.
_TEXT_CHARS_MAX = 256


def _text(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    """The details that can be encoded; the names of the others under `details_dropped`."""
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for name, value in details.items():
        try:
            _ENCODER.encode({name: value})
        except (UnicodeEncodeError, TypeError, RecursionError):
            dropped.append(_text(str(name)) or "")
        else:
            kept[name] = value
    return {**kept, **EntryDetails(details_dropped=dropped or None).stored()}


def settled_payload(seqs: list[int]) -> bytes:
    """Seqs → JSON list."""
    return _ENCODER.encode(seqs)


def opened_exchange(payload: bytes) -> str:
    """JSON of an `Opened` of any version → the id of its exchange, in a third of the time of `decode_opened`. Raises
    UndecodableError."""
    return _decoded(_OPENED_EXCHANGE, payload).exchange_id


def decode_opened(payload: bytes) -> Opened:
    """JSON → `Opened`. Raises UndecodableError."""
    return _decoded(_OPENED, payload)


def decode_record(payload: bytes) -> UsageRecord:
    """JSON → `UsageRecord`. Raises UndecodableError, also for a version above RECORD_VERSION."""
    record = _decoded(_RECORD, payload)
    if record.version > RECORD_VERSION:
        raise UndecodableError(f"record version {record.version} is too new: this code reads up to {RECORD_VERSION}")
    return record


def decode_envelope(payload: bytes) -> RecordEnvelope:
    """JSON of a record of any version → `RecordEnvelope`. Raises UndecodableError."""
    return _decoded(_ENVELOPE, payload)


def decode_seqs(payload: bytes) -> list[int]:
    """JSON → seqs. Raises UndecodableError."""
    return _decoded(_SEQS, payload)


def _decoded(decoder: msgspec.json.Decoder[_T], payload: bytes) -> _T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise UndecodableError(str(wrong)) from None
