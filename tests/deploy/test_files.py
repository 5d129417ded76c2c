"""What deploy/ holds fits together and fits the program: no file names a service, a variable, a path or a command that
is not there. What can be run is (systemd's own checks; the edges in test_edges.py); containers and charts are read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.cli import _parser
from proxy.settings import Settings, parse
from tests.deploy import chart

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PEPPER = "5e" * 32
# Longer than a stream may take to stop, and what it left to be settled.
STOP_S = 45
# By systemd's own measure: 10 is open to everything, a service of Debian's usually 9.
EXPOSURE_MAX = 1.5
SERVED = {"/healthz", "/readyz", "/metrics"}


def compose() -> dict[str, Any]:
    """compose.yaml."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


def settings_of(text: str, env: set[str]) -> Settings:
    """The configuration, with variables of these names and no others."""
    values = {
        "REDIS_URL": "redis://redis", "DATABASE_URL": "postgresql://p",
        "TOKENWEIR_PEPPER": PEPPER, "OPENAI_API_KEY": "sk-x",
    }  # fmt: skip
    return parse(text, env={name: values[name] for name in env}, folder=Path())


def test_a_container_runs_as_nobody_and_its_commands_are_ours() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert "HEALTHCHECK" in final
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
    assert [source for source in sources if f"!{source}\n" not in ignored] == []
    (command,) = re.findall(r"^CMD (\[.+\])$", final, re.MULTILINE)
    assert _parser().parse_args(yaml.safe_load(command)).run


def test_what_runs_is_pinned_as_it_is_tested() -> None:
    """deploy/requirements.txt is the part of requirements.txt that is no tool of ours: the same versions and hashes."""

    def pins(file: Path) -> set[str]:
        bare = re.sub(
            r"^ *#.*\n| ;[^\\\n]*|\\", "", file.read_text(), flags=re.MULTILINE
        )  # who asks for it, and where, may differ
        return {re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n(?=[A-Za-z0-9])", bare)} - {""}

    runs = pins(DEPLOY / "requirements.txt")
    assert runs <= pins(ROOT / "requirements.txt")
    assert not [one for one in runs if one.startswith(("pytest", "mypy", "ruff", "openai"))]
    assert "://" not in "".join(runs)


def test_compose_names_what_is_there() -> None:
    services = compose()["services"]
    ours = {name: service for name, service in services.items() if service["image"] == "tokenweir"}
    assert set(ours) == {"tokenweir-1", "tokenweir-2", "worker"}
    volumes = [volume.split(":") for service in services.values() for volume in service.get("volumes", ())]
    assert {source for source, *_ in volumes if not source.startswith(".")} == set(compose()["volumes"])
    files = {(DEPLOY / source).resolve() for source, *_ in volumes if source.startswith(".") and source != "./tls"}
    # Rules and dashboards are rooms of their own: where one is, what is wanted of it must be in it.
    absent = [room for room in (DEPLOY / "prometheus", ROOT / "grafana") if not room.is_dir()]
    assert [one for one in files if not one.exists() and not any(one.is_relative_to(room) for room in absent)] == []
    journals = [service["volumes"][1] for name, service in ours.items() if name != "worker"]
    assert len(set(journals)) == 2, "a journal is one proxy's"
    for service in ours.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert int(service["stop_grace_period"].removesuffix("s")) >= STOP_S
        assert _parser().parse_args(service.get("command") or ["serve"]).run
    example = set(re.findall(r"^([A-Z_]+)=$", (DEPLOY / "env.example").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$\{([A-Z_]+):\?", (DEPLOY / "compose.yaml").read_text())) == example


def test_the_configuration_in_compose_loads_and_its_variables_are_given() -> None:
    services = compose()["services"]
    given = set(services["tokenweir-1"]["environment"])
    settings = settings_of((DEPLOY / "tokenweir.yaml").read_text(), given)
    assert given <= set(services["worker"]["environment"])
    assert settings.shutdown_grace_s < STOP_S
    assert str(settings.data_dir) == services["tokenweir-1"]["volumes"][1].partition(":")[2]
    targets = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    edges = [(DEPLOY / "edge" / name).read_text() for name in ("nginx.conf", "haproxy.cfg", "Caddyfile")]
    for target in targets:
        name, port = target.split(":")
        assert name in services
        assert int(port) == settings.listen.port
        assert all(target in edge for edge in edges)


@pytest.mark.parametrize("unit", ["tokenweir.service", "tokenweir-worker@.service"])
def test_units_are_what_systemd_takes_and_open_little(unit: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here")
    text = (DEPLOY / "systemd" / unit).read_text()
    (command,) = re.findall(r"^ExecStart=/opt/tokenweir/bin/tokenweir (.+)$", text, re.MULTILINE)
    assert _parser().parse_args(command.replace("%i", "8081").split()).run
    placed = tmp_path / unit.replace("@", "@8081")
    placed.write_text(text.replace("/opt/tokenweir/bin/tokenweir", "/bin/true"))
    verified = subprocess.run([analyze, "verify", str(placed)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    offline = [analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:g}", "--no-pager", str(placed)]
    measured = subprocess.run(offline, capture_output=True, text=True, check=False)
    assert measured.returncode == 0, measured.stdout[-200:] + measured.stderr


@pytest.mark.parametrize("render", chart.RENDERERS)
def test_the_chart_makes_what_kubernetes_takes(render: Callable[[dict[str, Any]], str]) -> None:
    switched_on = {"ingress": {"enabled": True}, "podMonitor": {"enabled": True}, "proxy": {"replicas": 3}}
    made = [one for one in yaml.safe_load_all(render(switched_on)) if one]
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in made}
    assert len(by_kind) == len(made) == 8
    text = by_kind["ConfigMap", "tw"]["data"]["tokenweir.yaml"]
    settings = settings_of(text, {"REDIS_URL", "DATABASE_URL", "TOKENWEIR_PEPPER", "OPENAI_API_KEY"})
    proxy, worker = by_kind["StatefulSet", "tw"], by_kind["Deployment", "tw-worker"]
    assert proxy["spec"]["replicas"] == 3
    for workload, port in ((proxy, settings.listen.port), (worker, settings.worker.port)):
        template = workload["spec"]["template"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["spec"]["securityContext"]["runAsNonRoot"]
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["ports"][0]["containerPort"] == port
        assert {probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")} <= SERVED
        assert _parser().parse_args(container["args"]).run
        assert container["envFrom"] == [{"secretRef": {"name": "tokenweir"}}]
        volumes = {volume["name"] for volume in template["spec"]["volumes"]} | {"journal"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert proxy["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > settings.shutdown_grace_s + 20
    assert (
        by_kind["Service", "tw"]["spec"]["selector"].items() <= proxy["spec"]["template"]["metadata"]["labels"].items()
    )
    assert proxy["spec"]["serviceName"] == by_kind["Service", "tw-proxies"]["metadata"]["name"]
    paths = by_kind["Ingress", "tw"]["spec"]["rules"][0]["http"]["paths"]
    assert [path["path"] for path in paths] == ["/v1/"]
    assert ("Ingress", "tw") not in {
        (one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(render({})) if one
    }


def test_the_chart_knows_this_version() -> None:
    import proxy

    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    assert {about["appVersion"], about["version"], values["image"]["tag"]} == {proxy.__version__}
