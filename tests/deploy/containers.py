"""Containers of deploy/Dockerfile, built and run by Podman as root.

No image registry is asked for anything: the base image is made of Debian's packages, and a build has no network. Its
wheels are downloaded before, by the pip of this machine. Images and wheels stay in a folder of the user's caches, so
that a second run builds what has changed. Other programs' containers and images are not touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.storage.database import sqlite_url
from tests.deploy.edges import program
from tests.support.net import free_port
from tests.support.processes import Running
from tests.support.tokenweir import ROOT, Tokenweir

DATA = "/var/lib/tokenweir"
CONFIG = "/etc/tokenweir/tokenweir.yaml"
# Debian's stable release, whose Python has the wheels of all our packages.
SUITE, PYTHON = "trixie", "3.13"
_PACKAGES = (
    "base-files", "base-passwd", "ca-certificates", "coreutils", "dash", "libc-bin", "python-is-python3", "python3",
    "python3-venv", "sed",
)  # fmt: skip
_BUILD_S_MAX = 600.0
FILES_MAX = 65_536
EXTRAS = sorted(file.stem for file in (ROOT / "requirements" / "extras").glob("*.txt"))
# As a cluster's policy and compose.yaml ask for.
CONFINED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


class Engine:
    """Podman with a storage of its own."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("containers are built and run as root only")
        self._podman, self._mmdebstrap = program("podman"), program("mmdebstrap")
        self._folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenweir-containers"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(self._written("containers.conf", _containers_conf(self._folder))),
            "CONTAINERS_STORAGE_CONF": str(self._written("storage.conf", _storage_conf(self._folder))),
            "DISABLE_HC_SYSTEMD": "true",  # health checks run when a test asks for them
        }
        self._end_orphans()

    def new_name(self) -> str:
        """For a container, a volume or a project; it begins with the process of its test."""
        return f"tokenweir-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def _end_orphans(self) -> None:
        """Containers of a test run that was killed: some restart for ever."""
        for name in self("ps", "--all", "--format", "{{.Names}}").stdout.split():
            owner = re.match(r"tokenweir-(\d+)-", name)
            if owner and not Path("/proc", owner[1]).exists():
                self("rm", "--force", "--volumes", "--ignore", name)

    def _written(self, name: str, text: str) -> Path:
        path = self._folder / name
        with self._alone():
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        return path

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of the test run at a time."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def __call__(
        self, *arguments: str, check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self._podman, *arguments], env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=timeout_s,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"podman {arguments}: {done.stderr[-3000:]}{done.stdout[-1000:]}"
        return done

    def command(self, *arguments: str) -> list[str]:
        return [self._podman, *arguments]

    def inspect(self, name: str) -> dict[str, Any]:
        """Of an image."""
        (one,) = json.loads(self("image", "inspect", name).stdout)
        return dict(one)

    def built(self, extras: str = "", *options: str) -> str:
        """The name of the image of deploy/Dockerfile; layers that have not changed are those of the last run."""
        tag = f"localhost/tokenweir:{hashlib.sha256(str((extras, options)).encode()).hexdigest()[:12]}"
        with self._alone():
            base = self.base()
            self._require_containers(base)
            wheels = self._wheels(
                ["runtime", "build", *(f"extras/{one}" for one in extras.split(",") if one in EXTRAS)]
            )
            self(
                "build", "--quiet", "--format", "docker", "--network", "none", "--build-arg", f"BASE={base}",
                "--build-arg", f"EXTRAS={extras}", "--volume", f"{wheels}:/wheels:ro",
                "--secret", f"id=pip.conf,src={wheels.parent / 'pip.conf'}",
                "--file", "deploy/Dockerfile", "--tag", tag, *options, ".", timeout_s=_BUILD_S_MAX,
            )  # fmt: skip
            self("image", "prune", "--force", "--filter", "until=24h")
        return tag

    def _require_containers(self, base: str) -> None:
        """Skip the test where the machine itself gives no container its rights, as within some others."""
        tried = self("run", "--rm", "--network", "none", base, "true", check=False)
        if tried.returncode != 0:
            pytest.skip(f"this machine runs no containers: {tried.stderr[-300:].strip()}")

    def base(self) -> str:
        """Debian's Python, from its packages without their scripts: a tenth of a second is what the others need."""
        recipe = hashlib.sha256(str((SUITE, _PACKAGES)).encode()).hexdigest()[:12]
        name = f"localhost/tokenweir-base:{recipe}"
        if self("image", "exists", name, check=False).returncode == 0:
            return name
        root = self._folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        command = [self._mmdebstrap, "--quiet", "--variant=extract", f"--include={','.join(_PACKAGES)}"]
        command += [f"--dpkgopt=path-exclude=/usr/share/{one}/*" for one in ("doc", "man", "locale", "info")]
        made = subprocess.run(
            [*command, SUITE, root], capture_output=True, text=True, check=False, timeout=_BUILD_S_MAX,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr[-3000:]
        # What the scripts of two packages would make.
        for kind in ("passwd", "group"):
            shutil.copy(root / "usr/share/base-passwd" / f"{kind}.master", root / "etc" / kind)
        authorities = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
        (root / "etc/ssl/certs/ca-certificates.crt").write_bytes(b"".join(one.read_bytes() for one in authorities))
        packed = self._folder / "root.tar"
        subprocess.run(["tar", "-C", root, "-cf", packed, "."], check=True, timeout=_BUILD_S_MAX)
        self("import", "--quiet", str(packed), name, timeout_s=_BUILD_S_MAX)
        packed.unlink()
        shutil.rmtree(root)
        return name

    def _wheels(self, lists: Sequence[str]) -> Path:
        """The folder of wheels for the image's Python, these among them; pip's own settings say where from."""
        wheels = self._folder / "wheels"
        tags = ("manylinux_2_28", "manylinux2014", "manylinux_2_17")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--require-hashes", f"--python-version={PYTHON}", "--implementation=cp", f"--dest={wheels}"]
        command += [f"--platform={tag}_{platform.machine()}" for tag in tags]
        for one in lists:
            file = ROOT / "requirements" / f"{one}.txt"
            stamp = wheels / f"{hashlib.sha256(file.read_bytes()).hexdigest()}.all"
            if stamp.exists():
                continue
            done = subprocess.run(
                [*command, "--requirement", file],
                capture_output=True, text=True, check=False, timeout=_BUILD_S_MAX,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-3000:]
            stamp.touch()
        (self._folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        return wheels


def _containers_conf(folder: Path) -> str:
    """Limits that this machine allows: Podman's own are higher. crun refuses cgroups in their hybrid mode, runc does
    not."""
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], FILES_MAX)
    runtime = 'runtime = "runc"\n' if shutil.which("runc", path="/usr/sbin:/usr/bin") else ""
    return (
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\n'
        f'[engine]\n{runtime}cgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
        f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{folder}/networks"\n'
    )


def _storage_conf(folder: Path) -> str:
    return f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'


class Contained(Tokenweir):
    """A deployment in containers of an image, on the network of this machine; its data are a volume."""

    def __init__(self, engine: Engine, image: str, folder: Path, **settings: Any) -> None:
        self.image = image
        self.volume = self.name = engine.new_name()
        """the data, and the container of `serve`"""
        self._engine_of = engine
        engine("volume", "create", self.volume)
        port = free_port()
        super().__init__(folder, data_dir=DATA, listen={"host": "127.0.0.1", "port": port}, **settings)
        mounted = engine("volume", "inspect", "--format", "{{.Mountpoint}}", self.volume).stdout.strip()
        self.ledger_url = sqlite_url(Path(mounted) / "ledger.db")
        self._passed = {
            "TEST_PROVIDER_KEY": self.environment["TEST_PROVIDER_KEY"],
            "TOKENWEIR_HEALTH": f"http://127.0.0.1:{port}/readyz",
        }

    def _began(self, arguments: Sequence[str], log: Path) -> Running:
        given = [CONFIG if one == str(self.config) else one for one in arguments]
        named = ("--name", self.name) if given[0] == "serve" else ()
        passed = [f"--env={name}={value}" for name, value in self._passed.items()]
        command = self._engine_of.command(
            "run", "--rm", *named, "--network", "host", *CONFINED, *passed,
            "--volume", f"{self.volume}:{DATA}", "--volume", f"{self.config}:{CONFIG}:ro", self.image, *given,
        )  # fmt: skip
        with log.open("a") as errors:
            return subprocess.Popen(
                command, env=self._engine_of.environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def signal(self, number: signal.Signals) -> None:
        """To the container: `podman run` passes on what can be caught, and no SIGKILL."""
        self._engine_of("kill", "--signal", number.name, self.name)

    def inside(self, *command: str) -> str:
        """What a command prints in the running container."""
        return self._engine_of("exec", self.name, *command).stdout

    def healthy(self) -> bool:
        """The image's HEALTHCHECK, run now."""
        return self._engine_of("healthcheck", "run", self.name, check=False).returncode == 0

    def close(self) -> None:
        super().close()
        self._engine_of("rm", "--force", "--ignore", self.name)
        self._engine_of("volume", "rm", "--force", self.volume)
