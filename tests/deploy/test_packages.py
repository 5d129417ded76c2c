"""The wheel and the sdist: what is in them, and that the wheel runs where nothing of this repository is.

Each environment has the packages that Tokenweir needs by a path to those of the tests, and no other file of ours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy import __version__
from tests.support.net import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.thorough, pytest.mark.process, pytest.mark.io, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "data", "dist", "node_modules")
MADE = ("build", "tokenweir.egg-info")


@dataclass(frozen=True)
class Packages:
    source: Path
    """a copy of this repository"""
    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


def build(*arguments: str | Path, out: Path) -> Path:
    """Build one package with the setuptools of the tests. Return the file."""
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--offline", "--no-build-isolation"]
    run([*command, "--python", sys.executable, "--out-dir", out, *arguments], ROOT, dict(os.environ))
    (made,) = (path for path in out.iterdir() if path.suffix in (".whl", ".gz"))
    return made


def run(command: list[str | Path], folder: Path, environment: dict[str, str]) -> str:
    """What it prints. Asserts that it succeeds."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    folder = tmp_path_factory.mktemp("packages")
    source = folder / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=NOT_COPIED)
    sdist = build("--sdist", source, out=folder / "sdist")
    return Packages(
        source=source,
        wheel=build("--wheel", source, out=folder / "wheel"),
        sdist=sdist,
        wheel_of_sdist=build("--wheel", sdist, out=folder / "wheel-of-sdist"),
    )


class Installed:
    """A virtual environment that has Tokenweir, and an empty folder and home for whoever runs it there."""

    def __init__(self, folder: Path, *package: str | Path) -> None:
        environment = folder / "environment"
        run([sys.executable, "-m", "venv", "--without-pip", environment], folder, {})
        self.python = environment / "bin" / "python"
        (self.site,) = environment.glob("lib/python3.*/site-packages")
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (self.site / "shared.pth").write_text("\n".join(shared))
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        run([*pip, "--ignore-installed", "--no-build-isolation", *package], folder, {"HOME": str(folder)})
        self.folder, self.home = folder / "empty", folder / "home"
        self.folder.mkdir()
        self.home.mkdir()
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{environment / 'bin'}:{os.defpath}",
            "OPENAI_API_KEY": "none",
        }

    def run(self, *command: str) -> str:
        program = shutil.which(command[0], path=self.environment["PATH"])
        assert program
        return run([program, *command[1:]], self.folder, self.environment)

    @contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Its output can be read. It is ended by SIGTERM, and must exit with 0."""
        program = shutil.which(command[0], path=self.environment["PATH"])
        with subprocess.Popen(
            [str(program), *command[1:]], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
            finally:
                process.kill()


@pytest.fixture(scope="module")
def installed(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), packages.wheel_of_sdist)


def contents(wheel: Path) -> dict[str, int]:
    """The files, with their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.CRC for one in archive.infolist()}


def test_the_wheel_has_the_import_package_and_nothing_beside_it(packages: Packages) -> None:
    names = set(contents(packages.wheel))
    information = f"tokenweir-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"proxy", "tokenweir_command.py", information}
    vendored = {f"proxy/console/page/vendor/LICENSE-{one}.txt" for one in ("htm", "preact")}
    assert {f"{information}/licenses/{one}" for one in ("LICENSE", *vendored)} <= names
    kept = {str(path.relative_to(ROOT)) for path in (ROOT / "proxy").rglob("*") if is_kept(path)}
    kept |= {f"proxy/{path.relative_to(ROOT)}" for path in (ROOT / "migrations").rglob("*") if is_kept(path)}
    assert {name for name in names if name.startswith("proxy/")} == kept


def is_kept(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def test_the_wheel_of_the_sdist_is_that_of_the_repository(packages: Packages) -> None:
    assert contents(packages.wheel_of_sdist) == contents(packages.wheel)


def test_the_sdist_is_the_project(packages: Packages) -> None:
    """All files of the repository, so that its tests can run; but for those that begin with a point."""
    with tarfile.open(packages.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kept = {
        str(path.relative_to(packages.source))
        for part in packages.source.iterdir()
        if part.name not in MADE
        for path in (part, *part.rglob("*"))
        if is_kept(path)
    }
    assert kept - names == set()
    assert {name for name in names if "__pycache__" in name} == set()


def test_an_empty_environment_runs_the_demo(installed: Installed) -> None:
    assert installed.run("tokenweir", "--version") == f"tokenweir {__version__}\n"
    assert "every admitted exchange has exactly one entry" in installed.run("tokenweir", "demo")
    assert [*installed.folder.iterdir(), *installed.home.iterdir()] == []


def test_an_empty_folder_serves_a_stream(installed: Installed) -> None:
    """As docs/getting-started/quick-start.md has it, with a scripted provider."""
    port = free_port()
    with installed.running("python", "-m", "proxy.demo.provider", "--port", "0") as provider:
        assert provider.stdout is not None
        upstream = json.loads(provider.stdout.readline())["port"]
        installed.run("tokenweir", "init")
        config = installed.folder / "tokenweir.yaml"
        text = config.read_text().replace("port: 8080", f"port: {port}")
        config.write_text(re.sub(r"base_url: .*", f"base_url: http://127.0.0.1:{upstream}/v1", text))
        key = installed.run("tokenweir", "keys", "create", "--alias", "alice", "--quiet").strip()
        with installed.running("tokenweir", "serve"):
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: is_ready(url), within_s=60)
            body = {"model": "gpt-4o-mini", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            asked = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
            with urlopen(asked, timeout=30) as answer:
                assert answer.read().endswith(b"data: [DONE]\n\n")
    assert "up to date" in installed.run("tokenweir", "migrate")
    (entry,) = installed.run("tokenweir", "ledger", "--json").splitlines()
    assert json.loads(entry)["key_alias"] == "alice"


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_an_extra_is_added_without_looking_for_tokenweir(installed: Installed) -> None:
    """As messages say: `pip install 'tokenweir[NAME]'`."""
    extras = "bedrock,otlp,pdf,tokenizers,vertex"  # the tests have these
    installed.run("python", "-m", "pip", "install", "--quiet", "--no-index", f"tokenweir[{extras}]")


def test_another_module_of_the_name_is_named(installed: Installed) -> None:
    (installed.folder / "proxy.py").write_text("print('another program')")
    assert installed.run("tokenweir", "--version") == f"tokenweir {__version__}\n"
    tokenweir = installed.python.with_name("tokenweir")
    environment = {"PYTHONPATH": str(installed.folder)}
    done = subprocess.run([tokenweir, "--version"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"tokenweir: {installed.folder}/proxy.py would be imported instead of {installed.site}"
    )


def test_an_editable_install_finds_the_migrations(packages: Packages, tmp_path: Path) -> None:
    editable = Installed(tmp_path, "--editable", packages.source)
    assert editable.run("tokenweir", "--version") == f"tokenweir {__version__}\n"
    assert "0001" in editable.run(
        "python", "-c", "from proxy.ledger.schema import migrate; print(migrate._revisions())"
    )


def test_the_sbom_has_every_runtime_package_with_its_licence(tmp_path: Path) -> None:
    """As `make dist` makes it, of the metadata of the packages that the tests have."""
    lines = re.findall(r"^(\w.*?) \\$", (ROOT / "requirements" / "runtime.txt").read_text(), re.MULTILINE)
    wanted = [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate()]
    pinned = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in wanted}
    environment = tmp_path / "environment"
    run([sys.executable, "-m", "venv", "--without-pip", environment], tmp_path, {})
    (site,) = environment.glob("lib/python3.*/site-packages")
    for one in distributions():
        if canonicalize_name(one.name) in pinned:
            folder = site / f"{one.name}-{one.version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(one.read_text("METADATA") or "")
    made = tmp_path / "sbom.json"
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", environment, "--pyproject", ROOT / "pyproject.toml"]
    run([*tool, "--output-reproducible", "-o", made], tmp_path, {})
    sbom = json.loads(made.read_bytes())
    assert (sbom["metadata"]["component"]["name"], sbom["metadata"]["component"]["version"]) == (
        "tokenweir",
        __version__,
    )
    assert {canonicalize_name(one["name"]): one["version"] for one in sbom["components"]} == pinned
    assert [one["name"] for one in sbom["components"] if not one.get("licenses")] == []
