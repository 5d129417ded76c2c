"""Edges and the chart's ingress pass on the paths of the table of dialects, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.metering.dialects import DIALECTS

DEPLOY = Path(__file__).parents[2] / "deploy"
# What the paths of clients begin with.
PREFIXES = sorted({path.split("/")[1] for dialect in DIALECTS for path in dialect.paths})
# Of dialects that are served, but not yet through the shipped edges.
NOT_YET = {"api", "openai", "v1beta", "v2"}


def each(template: str) -> str:
    """`template` for every prefix."""
    return "".join(template % prefix for prefix in PREFIXES)


@pytest.mark.parametrize(
    ("file", "place", "paste"),
    [
        ("edge/Caddyfile", r"(/\w+/)\*", each(" /%s/*")),
        ("edge/haproxy.cfg", r"path_beg ([/\w ]+) \}", each(" /%s/")),
        ("edge/nginx.conf", r"location (?:~ \^)?(/\S+/) \{", f"location ~ ^/({'|'.join(PREFIXES)})/ {{"),
        ("helm/tokenweir/templates/ingress.yaml", r"- path: (/\S+/)", each("\n          - path: /%s/")),
    ],
)
def test_an_edge_passes_on_the_paths_of_the_table(file: str, place: str, paste: str) -> None:
    found = re.findall(r"\w+", " ".join(re.findall(place, (DEPLOY / file).read_text())))
    assert set(found) == set(PREFIXES) - NOT_YET, f"all of them, for {file}: {paste}"
