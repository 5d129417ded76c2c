"""The documentation as a static site: `python -m tests.docs.site FOLDER`, or `make site`.

Invariant: the site has the pages where they are in the repository, so that a link that works there works here. A link
to a page or a heading that does not exist is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.lines import ROOT

PATTERNS = ("*.md", "docs/**/*.md", "examples/*.md", "deploy/**/*.md")
_LINK = re.compile(r"\]\(([^)\s#]+)")
CONFIG = """\
[project]
site_name = "Tokenweir"
site_description = "A reverse proxy that meters LLM streams and bills each request in an auditable ledger"
docs_dir = "pages"
site_dir = "html"
use_directory_urls = false
nav = [
    {"Tokenweir" = "README.md"},
    {"Documentation" = "docs/README.md"},
    {"Getting started" = "docs/getting-started/quick-start.md"},
    {"How to" = [HOW_TO]},
    {"Reference" = [REFERENCE]},
    {"Explanation" = [EXPLANATION]},
    {"Operations" = [OPERATIONS]},
    {"Evidence" = [EVIDENCE]},
    {"Changes" = "CHANGELOG.md"},
]

[project.validation]
invalid_links = true
invalid_link_anchors = true

# No file of another site.
[project.theme]
font = false

[[project.theme.palette]]
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "dark"

[[project.theme.palette]]
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "light"
"""


def copied() -> set[Path]:
    """The pages, and the files of the repository that they link to."""
    pages = {page for pattern in PATTERNS for page in ROOT.glob(pattern)}
    links = {(page.parent / link).resolve() for page in pages for link in _LINK.findall(page.read_text())}
    return pages | {one for one in links if one.is_file() and one.is_relative_to(ROOT)}


def build(folder: Path) -> Path:
    """Make the site in an empty folder; returns its first page. Raises CalledProcessError for a broken link."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in copied():
        place = folder / "pages" / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    config = CONFIG
    for section in ("how-to", "reference", "explanation", "operations", "evidence"):
        names = sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs" / section).glob("**/*.md"))
        config = config.replace(f"[{section.upper().replace('-', '_')}]", str(names).replace("'", '"'))
    (folder / "zensical.toml").write_text(config)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    return folder / "html" / "index.html"


if __name__ == "__main__":
    try:
        print(build(Path(sys.argv[1])))
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.stdout)
