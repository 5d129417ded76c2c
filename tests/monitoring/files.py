"""The files of the monitoring that several tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

GOLDEN = Path(__file__).with_name("exposition.txt")
FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
FILES = sorted(FOLDER.glob("*.rules.yml"))
RULES: list[dict[str, Any]] = [
    rule for file in FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
]
