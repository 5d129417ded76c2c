"""What the paths of clients begin with: made from the table of dialects, and written into each file of deploy/ that
lets them in.

    python -m tests.deploy.prefixes      writes it anew, after a dialect has come or gone

Invariant: each of these files has the list once, as `a|b|c`, and has it from here.
"""

from __future__ import annotations

import re
from pathlib import Path

from proxy.metering.dialects import DIALECTS
from proxy.metering.stored_objects import OBJECT_APIS

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ("edge/Caddyfile", "edge/haproxy.cfg", "edge/nginx.conf", "helm/tokenweir/templates/_helpers.tpl")
_LIST = re.compile(r"\w+(?:\|\w+){3,}")


def prefixes() -> list[str]:
    """The first parts of all paths; and those after `/v1`, for base URLs without it."""
    paths = [*(path for dialect in DIALECTS for path in dialect.paths), *(api.path for api in OBJECT_APIS)]
    parts = [path.split("/")[1:] for path in paths]
    return sorted({path[0] for path in parts} | {path[1] for path in parts if path[0] == "v1"})


def written(text: str) -> str:
    """The file's text with today's list. Raises ValueError: it has none, or several."""
    found = _LIST.findall(text)
    if len(found) != 1:
        raise ValueError(f"one list of prefixes is wanted, not {found}")
    return text.replace(found[0], "|".join(prefixes()))


if __name__ == "__main__":
    for name in FILES:
        (DEPLOY / name).write_text(written((DEPLOY / name).read_text()))
