"""Settings of estimates: the text kept in memory for counting."""

from __future__ import annotations

from proxy.settings.fields import setting, settings_section
from proxy.settings.kinds import size

# A vocabulary counts a megabyte in about a tenth of a second.
ANSWER_BYTES_MAX = 1 << 20
BYTES_MAX = 16 << 30


@settings_section
class EstimateSettings:
    """Settings of the estimates of unreported usage."""

    answer_bytes_max: int = setting(
        size(0, ANSWER_BYTES_MAX),
        "text of one answer, and of one prompt, that is kept in memory until its usage is known, and tokenized if "
        "no usage is reported; 0: none, and no vocabulary is loaded (60 MB); estimates are then made from counters",
        default=64 << 10,
        shown="64 KiB",
    )
    bytes_max: int = setting(
        size(0, BYTES_MAX),
        "text of all answers and prompts of a process together that is kept in memory",
        default=64 << 20,
        shown="64 MiB",
    )
