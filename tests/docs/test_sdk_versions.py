"""The page of SDKs and agents names the versions that `make real` runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.real.litellm import VERSION
from tests.real.sdks.agents import CLAUDE_CODE, CODEX, OPENCODE

ROOT = Path(__file__).parents[2]
SDKS = ROOT / "tests" / "real" / "sdks"
PAGE = (ROOT / "docs" / "how-to" / "sdks-and-agents.md").read_text()


def pinned() -> dict[str, str]:
    """Package → version, of every list that a program is made of."""
    go = re.findall(r"^\tgithub\.com/(?:openai|anthropics)/(\S+) v(\S+)$", (SDKS / "go" / "go.mod").read_text(), re.M)
    java = re.findall(r"<artifactId>(.+)</artifactId>\s*<version>(.+\..+)<", (SDKS / "java" / "pom.xml").read_text())
    node = json.loads((SDKS / "node" / "package.json").read_text())["dependencies"].items()
    python = [line.split("==") for line in (SDKS / "python" / "requirements.txt").read_text().split()]
    agents = [agent.rsplit("@", 1) for agent in (CODEX, CLAUDE_CODE, OPENCODE)]
    return dict([*go, *java, *node, *python, *agents, ("litellm", VERSION)])


@pytest.mark.parametrize(("package", "version"), pinned().items())
def test_the_page_names_the_version_that_is_run(package: str, version: str) -> None:
    (row,) = [line for line in PAGE.split("\n") if f"`{package}`" in line]
    assert version in row.split("|")[2]


def test_every_list_is_read() -> None:
    assert len(pinned()) == 19
