"""The sample rate of AAC, by its AudioSpecificConfig: decoders go by it, whatever a container says. ISO/IEC 14496-3"""

from __future__ import annotations

RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350)
"""by index; the same in ADTS"""
FRAME = 1024
"""samples of a frame"""
_WRITTEN_OUT = 15


def config_rate(config: bytes) -> int:
    """Of its first bytes: five bits of a type, four of an index, or the rate itself; 0: there is none."""
    bits = int.from_bytes(config[:5].ljust(5, b"\0"))
    index = bits >> 31 & 15
    if index == _WRITTEN_OUT:
        return bits >> 7 & 0xFFFFFF
    return RATES[index] if index < len(RATES) and len(config) >= 2 else 0
