"""The documentation as a static site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs import site


@pytest.mark.process
@pytest.mark.thorough
def test_the_site_has_every_page_and_a_search(tmp_path: Path) -> None:
    first = site.build(tmp_path)
    missing = [
        page for page in site.copied()
        if page.suffix == ".md" and page.name != "README.md"
        and not (first.parent / page.relative_to(site.ROOT)).with_suffix(".html").exists()
    ]  # fmt: skip
    assert missing == []
    assert "Tokenweir" in first.read_text()
    found = json.dumps(json.loads((first.parent / "search.json").read_text()))
    assert "insufficient_quota" in found
