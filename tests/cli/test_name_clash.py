"""Another module named `proxy` is not run in place of Tokenweir's, and the message names its file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxy import __version__

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
# As the script that pip makes, with the folder of the installation on the path.
SCRIPT = "import sys; sys.path.append(sys.argv.pop(1)); from tokenweir_command import main; sys.exit(main())"
OTHER = "print('another program')"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An installation with the one file of the package that decides."""
    site = tmp_path / "site-packages"
    (site / "proxy").mkdir(parents=True)
    shutil.copy(ROOT / "tokenweir_command.py", site)
    shutil.copy(ROOT / "proxy" / "__init__.py", site / "proxy")
    (site / "proxy" / "cli.py").write_text(f"def main():\n    print('tokenweir {__version__}')\n")
    return site


def run(site: Path, *, pythonpath: Path | None = None) -> tuple[int, str, str]:
    """Exit code and both outputs of `tokenweir`, started in a folder that has a `proxy.py`."""
    folder = site.parent / "current"
    folder.mkdir()
    (folder / "proxy.py").write_text(OTHER)
    environment = {"PYTHONPATH": str(pythonpath)} if pythonpath else {}
    command = [sys.executable, "-I" if pythonpath is None else "-P", "-S", "-c", SCRIPT, str(site)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_file_of_that_name_in_the_current_folder_does_not_matter(site: Path) -> None:
    assert run(site) == (0, f"tokenweir {__version__}\n", "")


@pytest.mark.parametrize("name", ["proxy.py", "proxy/__init__.py"])
def test_a_module_of_that_name_on_pythonpath_is_named(site: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "on-path" / name
    other.parent.mkdir(parents=True)
    other.write_text(OTHER)
    own = site / "proxy" / "__init__.py"
    said = f"tokenweir: {other} would be imported instead of {own}: rename it, or remove its folder from PYTHONPATH\n"
    assert run(site, pythonpath=tmp_path / "on-path") == (1, "", said)


def test_a_distribution_that_has_replaced_the_package_is_named(site: Path) -> None:
    """What pip leaves after `pip install proxy.py`."""
    (site / "proxy" / "__init__.py").write_text(OTHER)
    information = site / "proxy.py-2.4.10.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: proxy.py\nVersion: 2.4.10\n")
    (information / "RECORD").write_text("proxy/__init__.py,,\n")
    code, printed, said = run(site)
    assert (code, printed) == (1, "")
    assert said.startswith(f"tokenweir: {site}/proxy/__init__.py has been replaced by proxy.py 2.4.10: install ")


def test_a_package_without_its_file_is_named(site: Path) -> None:
    """What pip leaves after `pip uninstall proxy.py`."""
    (site / "proxy" / "__init__.py").unlink()
    code, printed, said = run(site)
    assert (code, printed) == (1, "")
    assert said.startswith(f"tokenweir: {site}/proxy/__init__.py is missing: install Tokenweir again")
