"""How long the longest of the long runs are: `make faults` takes a fifth of each, `PART=1 make faults` all.

Invariant: what is left out is more of the same; each kind of fault happens at every part.
"""

from __future__ import annotations

import os

PART = float(os.environ.get("PART", "0.2"))


def part_of(count: int) -> int:
    """Of so many rounds, exchanges or rows: as many as this run takes, at least one."""
    return max(1, round(count * PART))
