"""examples/: configurations load, clients are programs. What the clients print is in test_quick_start.py."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.conformance.cases import CASES
from proxy.settings import load

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {
    "PROVIDER_URL": "https://provider.test/v1",
    "PROVIDER_KEY": "sk-x",
    "OPENAI_API_KEY": "sk-x",
    "TOKENWEIR_ADMIN_SECRET": "a-secret-of-0123456789-abcdefghij",
    "TOKENWEIR_PEPPER": "5e" * 32,
    "REDIS_URL": "redis://redis.test",
    "DATABASE_URL": "postgresql://postgres.test/tokenweir",
}


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text()
    files = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.*") if file.is_file()}
    files = {file for file in files if "__pycache__" not in file} - {"README.md"}
    assert [name for name in files if f"({name})" not in index] == []


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_a_configuration_loads(file: Path) -> None:
    settings = load(file, ENVIRONMENT)
    assert settings.data_dir == EXAMPLES / "data"
    assert "*" in settings.models


def test_the_configuration_for_the_conformance_suite_loads() -> None:
    settings = load(EXAMPLES / "conformance" / "tokenweir.yaml", {})
    assert {case.wire.prefix + "/*" for case in CASES} < set(settings.models)


@pytest.mark.external
def test_the_javascript_client_is_javascript() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on this machine: install it to check examples/stream.mjs")
    subprocess.run([node, "--check", str(EXAMPLES / "stream.mjs")], check=True, timeout=60)
