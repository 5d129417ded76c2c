"""The README tells the truth: what is generated in it is what the program says today."""

from __future__ import annotations

from pathlib import Path

from proxy.settings import load, reference

README = (Path(__file__).parents[1] / "README.md").read_text()


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
    settings = load(file, {"OPENAI_API_KEY": "sk-of-a-newcomer"})
    assert set(settings.models) == {"gpt-4o-mini", "*"}
    assert settings.data_dir == tmp_path / "data"


def test_the_four_systems_configuration_loads(tmp_path: Path) -> None:
    block = README.split("## The four systems")[1].split("```yaml\n")[1].split("```")[0].replace("HOST", "host.test")
    file = tmp_path / "tokenweir.yaml"
    file.write_text(block + 'models: {"*": {provider: tera}}\n')
    names = ("TERA_API_KEY", "TENSORLOOP_KEY", "SILICONSTORM_KEY", "SMALLEST_API_KEY")
    settings = load(file, dict.fromkeys(names, "sk-x"))
    assert settings.providers["electron"].base_url.endswith("/waves/v1")
