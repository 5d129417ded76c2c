"""A line that installs something names what is there: extras of pyproject.toml, files of the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*", "examples/*", "proxy/**/*.py")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix != ".png" and "__pycache__" not in path.parts
]
# What is installed, between the command and the end of its line, code or sentence.
INSTALLED = re.compile(r"\bpip install\s+((?:'[^'\n]*'|[^`)\n&;'\x22#\\])+)")
# Packages of others that clients use.
OF_OTHERS = {"openai"}
OF_OPTIONS = {":all:"}


def installed() -> set[tuple[str, str]]:
    """File and argument of every line, without options and variables."""
    return {
        (str(path.relative_to(ROOT)), argument)
        for path in PAGES
        for line in INSTALLED.findall(path.read_text("utf-8"))
        for argument in line.strip(" .,").split()
        if not argument.startswith(("-", "$")) and argument not in OF_OPTIONS
    }


def is_there(argument: str) -> bool:
    if extras := re.fullmatch(r"'tokenweir\[(.+)\]'", argument):
        return set(extras[1].split(",")) <= EXTRAS | {"NAME", "{extra}"}
    return argument in OF_OTHERS or argument.endswith(".whl") or (ROOT / argument).is_file()


def test_what_is_installed_is_there() -> None:
    found = installed()
    assert {(file, argument) for file, argument in found if not is_there(argument)} == set()
    assert {"deploy/Dockerfile", "docs/operations/deployment.md", "proxy/reports/export.py"} <= dict(found).keys()


def test_every_extra_is_in_the_page_on_installing_and_nothing_else() -> None:
    page = (ROOT / "docs" / "operations" / "deployment.md").read_text("utf-8")
    rows = page.partition("| extra | for |\n")[2]
    named = [name for row in re.findall(r"^\| (`.+?`) \|", rows, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)]
    assert sorted(named) == sorted(EXTRAS)


def test_every_extra_that_is_mentioned_exists() -> None:
    texts = "\n".join(path.read_text("utf-8") for path in PAGES)
    named = {name for names in re.findall(r"tokenweir\[([\w,]+)\]", texts) for name in names.split(",")}
    assert named - {"NAME"} == EXTRAS
