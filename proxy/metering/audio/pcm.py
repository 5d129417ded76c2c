"""WAV and AIFF: samples of a constant size."""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from

from proxy.metering.audio.mpeg import mpeg_s
from proxy.metering.audio.parts import Parts

# Beyond these, no decoder takes a file.
_RATES, _CHANNELS_MAX, _BITS_MAX = range(1_000, 768_001), 64, 64
# ADPCM has two samples in a byte, and a few bytes before each block; GSM has 320 samples in 65 bytes.
_ADPCM, _GSM, _MP3 = (0x02, 0x11), 0x31, 0x55
_GSM_SAMPLES, _GSM_BYTES = 320, 65


def wav_s(audio: bytes, parts: Parts) -> float:
    """The seconds of a WAV file, by sample rate, channels and bits of a sample. The header's byte rate is ignored."""
    bytes_per_s = 0.0
    for name, start, end in _chunks(audio, "little", parts):
        if name == b"fmt ":
            kind, channels, rate, _, block, bits = unpack_from("<HHIIHH", audio, start)
            if kind == _MP3:
                return mpeg_s(audio, parts)
            if kind in _ADPCM and channels:
                bytes_per_s = rate * block / max((block - 4 * channels) * 2 / channels + 1, 1)
            elif kind == _GSM:
                bytes_per_s = rate * _GSM_BYTES / _GSM_SAMPLES
            else:
                bytes_per_s = _rate(rate, channels, bits)
        elif name == b"data":
            return (end - start) / bytes_per_s if bytes_per_s else 0.0
    return 0.0


def aiff_s(audio: bytes, parts: Parts) -> float:
    """The seconds of an AIFF file, by sample rate, channels and bits of a sample."""
    bytes_per_s = 0.0
    for name, start, end in _chunks(audio, "big", parts):
        if name == b"COMM":
            channels, _, bits, exponent, mantissa = unpack_from(">hIhHQ", audio, start)
            bytes_per_s = _rate(int(mantissa * 2.0 ** ((exponent & 0x7FFF) - 16_446)), channels, bits)
        elif name == b"SSND" and bytes_per_s:
            return max(end - start - 8, 0) / bytes_per_s
    return 0.0


def _rate(rate: int, channels: int, bits: int) -> float:
    """Bytes of a second; 0: no audio."""
    good = rate in _RATES and 0 < channels <= _CHANNELS_MAX and 0 < bits <= _BITS_MAX
    return float(rate * max(channels * bits // 8, 1)) if good else 0.0


def _chunks(audio: bytes, order: str, parts: Parts) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of each chunk. Data without a size, from recorders that stream, ends with the file. So does
    data that is followed by no chunk: its size is ignored."""
    at = 12
    while at + 8 <= len(audio) and parts.next(at):
        name, start, end = _chunk(audio, at, order)
        if name in (b"data", b"SSND") and not (end > start and _are_chunks(audio, end, order)):
            end = len(audio)
        yield name, start, min(end, len(audio))
        at = end + (end & 1)
    parts.counted_to = len(audio)


def _chunk(audio: bytes, at: int, order: str) -> tuple[bytes, int, int]:
    size = int.from_bytes(audio[at + 4 : at + 8], "little" if order == "little" else "big")
    return audio[at : at + 4], at + 8, at + 8 + size


def _are_chunks(audio: bytes, at: int, order: str) -> bool:
    """Whether the rest of a file consists of chunks. Decoders skip chunks."""
    for _ in range(1_000):
        at += at & 1
        if len(audio) - at < 8:
            return True
        name, _, at = _chunk(audio, at, order)
        if not (name.isascii() and name.decode("ascii").isprintable()):
            return False
    return False
