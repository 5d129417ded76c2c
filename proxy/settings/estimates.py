"""Settings of estimates: how much text is held to be counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.settings.kinds import about, size

# A vocabulary counts a megabyte in about a tenth of a second.
ANSWER_BYTES_MAX = 1 << 20
BYTES_MAX = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSettings:
    """Estimates of what a provider does not report."""

    answer_bytes_max: int = field(
        default=64 << 10,
        metadata=about(
            size(0, ANSWER_BYTES_MAX),
            "text of one answer, and of one prompt, that is held in memory until its usage is known, and counted if it "
            "is not reported; 0: none, and no vocabulary is loaded (60 MB): estimates are made from counters",
            default="64 KiB",
        ),
    )
    bytes_max: int = field(
        default=64 << 20,
        metadata=about(
            size(0, BYTES_MAX), "the same of all answers and prompts of a process together", default="64 MiB"
        ),
    )
