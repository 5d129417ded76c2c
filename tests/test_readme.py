"""The README tells the truth: what is generated in it is what the program says today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.settings import load, reference

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SECRET = "a-secret-of-0123456789-abcdefghij"


def between(mark: str) -> str:
    """What stands between `<!-- mark -->` and `<!-- /mark -->`."""
    return README.split(f"<!-- {mark} -->\n")[1].split(f"<!-- /{mark} -->")[0]


def test_the_reference_is_the_settings_own() -> None:
    assert between("reference").strip() == reference().strip()


def test_the_quick_start_configuration_loads(tmp_path: Path) -> None:
    """The first YAML block, as a newcomer would save it."""
    block = README.split("```yaml\n")[1].split("```")[0]
    file = tmp_path / "tokenweir.yaml"
    file.write_text(block)
    exported = dict.fromkeys(re.findall(r"^export ([A-Z_]+)=", README.split("## Words")[0], re.MULTILINE), SECRET)
    settings = load(file, exported)
    assert settings.admin.secret is not None
    assert set(settings.models) == {"gpt-4o-mini", "*"}
    assert settings.data_dir == tmp_path / "data"


def test_the_four_systems_configuration_loads(tmp_path: Path) -> None:
    block = README.split("## The four systems")[1].split("```yaml\n")[1].split("```")[0].replace("HOST", "host.test")
    file = tmp_path / "tokenweir.yaml"
    file.write_text(block + 'models: {"*": {provider: tera}}\n')
    names = ("TERA_API_KEY", "TENSORLOOP_KEY", "SILICONSTORM_KEY", "SMALLEST_API_KEY")
    settings = load(file, dict.fromkeys(names, "sk-x"))
    assert settings.providers["electron"].base_url.endswith("/waves/v1")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    file = ROOT / page
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        there = file.parent / path if path else file
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text()), target


def anchors(text: str) -> set[str]:
    """The names that headings get."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_contributing_is_one_screen() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 50
