"""All dashboards, and their files."""

from __future__ import annotations

import json
from pathlib import Path

from grafana.money import MONEY
from grafana.pipeline import PIPELINE
from grafana.streams import STREAMS

BOARDS = (STREAMS, MONEY, PIPELINE)
FOLDER = Path(__file__).parent / "dashboards"


def written() -> dict[str, str]:
    """Map file names to JSON texts."""
    return {f"{board.uid}.json": json.dumps(board.json(), indent=2, ensure_ascii=False) + "\n" for board in BOARDS}
