"""What deploy/ holds fits together and fits the program: no file names a service, a variable, a path or a command that
is not there. What can be run is (systemd's own checks; the edges in test_edges.py); containers and charts are read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy import __version__
from proxy.cli import _parser
from proxy.settings import Settings, parse
from proxy.settings.listeners import Listen
from proxy.settings.variables import variable
from tests.deploy import chart
from tests.deploy.edges import program
from tests.deploy.prefixes import prefixes

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PEPPER = "5e" * 32
ADMIN = "a-secret-of-0123456789-abcdefghij"
BASICS = {"REDIS_URL", "DATABASE_URL", "TOKENWEIR_PEPPER", "OPENAI_API_KEY"}
# Longer than a stream may take to stop, and what it left to be settled.
STOP_S = 45
# By systemd's own measure: 10 is open to everything, a service of Debian's usually 9.
EXPOSURE_MAX = 1.5
SERVED = {"/healthz", "/readyz", "/metrics"}
# What the chart packs of other folders: `helm package` takes nothing from outside of it.
PACKED = sorted([*(DEPLOY / "prometheus").glob("*.rules.yml"), *(ROOT / "grafana" / "dashboards").glob("*.json")])


def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


def settings_of(text: str, env: set[str]) -> Settings:
    """The configuration, with variables of these names and no others."""
    values = {
        "REDIS_URL": "redis://redis", "DATABASE_URL": "postgresql://p",
        "TOKENWEIR_PEPPER": PEPPER, "OPENAI_API_KEY": "sk-x", "TOKENWEIR_ADMIN_SECRET": ADMIN,
        "TOKENWEIR_PROVIDER_ADMIN_KEY": "sk-admin-x",
    }  # fmt: skip
    return parse(text, env={name: values[name] for name in env}, folder=Path())


def rendered(**values: Any) -> chart.Manifests:
    """What the chart makes of these values."""
    return chart.manifests(values)


def mounted(by_kind: dict[tuple[str, str], dict[str, Any]], kind: str, name: str) -> str:
    """The configuration as the containers of this workload find it."""
    spec = by_kind[kind, name]["spec"]
    volumes = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]["volumes"]
    (config,) = (volume["configMap"] for volume in volumes if volume["name"] == "config")
    (item,) = config["items"]
    assert item["path"] == "tokenweir.yaml"
    text: str = by_kind["ConfigMap", config["name"]]["data"][item["key"]]
    return text


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
    """All lists are parts of dev.txt: the same versions and hashes, and none of our tools. No test reads Parquet's."""

    def pins(file: Path) -> set[str]:
        bare = re.sub(
            r"^ *#.*\n| ;[^\\\n]*|\\", "", file.read_text(), flags=re.MULTILINE
        )  # who asks for it, and where, may differ
        return {re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n(?=[A-Za-z0-9])", bare)} - {""}

    runs, builds, all_of_it = (pins(ROOT / "requirements" / f"{name}.txt") for name in ("runtime", "build", "dev"))
    assert runs | builds <= all_of_it
    extras = {file.stem: pins(file) for file in (ROOT / "requirements" / "extras").iterdir()}
    assert set(extras) == set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    parquet = extras.pop("parquet")
    assert [one.partition("==")[0] for one in parquet] == ["pyarrow"]
    assert set().union(*extras.values()) <= all_of_it - runs
    assert [one.partition("==")[0] for one in builds] == ["setuptools"]
    assert not [one for one in runs if one.startswith(("pytest", "mypy", "ruff", "openai"))]
    assert "://" not in "".join(runs)


def test_compose_names_what_is_there() -> None:
    services = compose()["services"]
    ours = {name: service for name, service in services.items() if service["image"] == "tokenweir"}
    assert set(ours) == {"tokenweir-1", "tokenweir-2", "worker", "migrate"}
    volumes = [volume.split(":") for service in services.values() for volume in service.get("volumes", ())]
    assert {source for source, *_ in volumes if not source.startswith(".")} == set(compose()["volumes"])
    files = {(DEPLOY / source).resolve() for source, *_ in volumes if source.startswith(".") and source != "./tls"}
    # Rules and dashboards are rooms of their own: where one is, what is wanted of it must be in it.
    absent = [room for room in (DEPLOY / "prometheus", ROOT / "grafana") if not room.is_dir()]
    assert [one for one in files if not one.exists() and not any(one.is_relative_to(room) for room in absent)] == []
    journals = [service["volumes"][1] for name, service in ours.items() if name.startswith("tokenweir-")]
    assert len(set(journals)) == 2, "a journal is one proxy's"
    for service in ours.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert int(service["stop_grace_period"].removesuffix("s")) >= STOP_S
        assert _parser().parse_args(service.get("command") or ["serve"]).run
    finished = {"condition": "service_completed_successfully"}
    assert {name for name, one in ours.items() if one["depends_on"].get("migrate") == finished} == set(ours) - {
        "migrate"
    }
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
    assert settings.admin.secret is not None
    assert not [edge for edge in edges if str(settings.admin.port) in edge]
    for name, service in services.items():
        published = service.get("ports", ())
        assert name == "edge" or all(port.startswith("127.0.0.1:") for port in published)
        consoles = [port for port in published if port.endswith(f":{settings.admin.port}")]
        assert len(consoles) == name.startswith("tokenweir-")


@pytest.mark.external
@pytest.mark.parametrize("unit", ["tokenweir.service", "tokenweir-worker@.service", "tokenweir-reconcile@.service"])
def test_units_are_what_systemd_takes_and_open_little(unit: str, tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    text = (DEPLOY / "systemd" / unit).read_text()
    for command in re.findall(r"^ExecStart(?:Pre)?=/opt/tokenweir/bin/tokenweir (.+)$", text, re.MULTILINE):
        assert _parser().parse_args(command.replace("%i", "8081").split()).run
    placed = tmp_path / unit.replace("@", "@8081")
    placed.write_text(text.replace("/opt/tokenweir/bin/tokenweir", "/bin/true"))
    verified = subprocess.run([analyze, "verify", str(placed)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    offline = [analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:g}", "--no-pager", str(placed)]
    measured = subprocess.run(offline, capture_output=True, text=True, check=False)
    assert measured.returncode == 0, measured.stdout[-200:] + measured.stderr


@pytest.mark.external
def test_the_socket_is_the_port_of_the_service(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    for kind in ("socket", "service"):
        text = (DEPLOY / "systemd" / f"tokenweir.{kind}").read_text()
        (tmp_path / f"tokenweir.{kind}").write_text(text.replace("/opt/tokenweir/bin/tokenweir", "/bin/true"))
    placed = str(tmp_path / "tokenweir.socket")
    verified = subprocess.run([analyze, "verify", placed], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert f"ListenStream=127.0.0.1:{Listen().port}\n" in (DEPLOY / "systemd" / "tokenweir.socket").read_text()


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_a_unit_gets_the_secrets_of_a_folder_as_credentials(unit: Path, tmp_path: Path) -> None:
    """systemd names a file of a folder by the credential's name, an underscore and its own."""
    loaded = dict(re.findall(r"^LoadCredential=(\w+):(\S+)$", unit.read_text(), re.MULTILINE))
    (named,) = [name for name, place in loaded.items() if place == "/etc/tokenweir/credentials"]
    (tmp_path / f"{named}_OPENAI_API_KEY").write_text("sk-1\n")
    assert variable({"CREDENTIALS_DIRECTORY": str(tmp_path)}, "OPENAI_API_KEY") == "sk-1"


@pytest.mark.external
def test_the_timer_of_the_comparison_is_daily_and_finds_its_service(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    for kind in ("service", "timer"):
        text = (DEPLOY / "systemd" / f"tokenweir-reconcile@.{kind}").read_text()
        (tmp_path / f"tokenweir-reconcile@.{kind}").write_text(
            text.replace("/opt/tokenweir/bin/tokenweir", "/bin/true")
        )
    timer = tmp_path / "tokenweir-reconcile@openai.timer"
    timer.symlink_to(tmp_path / "tokenweir-reconcile@.timer")
    verified = subprocess.run([analyze, "verify", str(timer)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    (when,) = re.findall(r"^OnCalendar=(.+)$", timer.read_text(), re.MULTILINE)
    twice = [analyze, "calendar", "--base-time=2026-11-01", "--iterations=2", when]
    shown = subprocess.run(twice, capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC"}).stdout
    assert re.findall(r"2026-11-\d\d \d\d:\d\d:\d\d", shown) == ["2026-11-01 06:30:00", "2026-11-02 06:30:00"]


@pytest.mark.external
def test_the_chart_makes_what_kubernetes_takes() -> None:
    by_kind = rendered(ingress={"enabled": True}, podMonitor={"enabled": True}, proxy={"replicas": 3})
    assert len(by_kind) == 10
    text = by_kind["ConfigMap", "tw"]["data"]["tokenweir.yaml"]
    settings = settings_of(text, BASICS)
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
    assert [(path["path"], path["pathType"]) for path in paths] == [(f"/{one}", "Prefix") for one in prefixes()]
    job = by_kind["PodMonitor", "tw"]["spec"]["jobLabel"]
    for workload in (proxy, worker):  # the rules and dashboards look for that word
        assert workload["spec"]["template"]["metadata"]["labels"][job] == "tokenweir"


@pytest.mark.external
def test_the_chart_opens_nothing_that_was_not_asked_for() -> None:
    by_kind = rendered()
    assert sorted(by_kind) == [
        ("ConfigMap", "tw"), ("ConfigMap", "tw-migrate"), ("Deployment", "tw-worker"), ("Job", "tw-migrate"),
        ("PodDisruptionBudget", "tw"), ("Service", "tw"), ("Service", "tw-proxies"), ("StatefulSet", "tw"),
    ]  # fmt: skip
    assert settings_of(mounted(by_kind, "StatefulSet", "tw"), BASICS).admin.secret is None
    assert "8090" not in chart.rendered({})


@pytest.mark.external
def test_the_chart_upgrades_the_ledger_before_anything_else() -> None:
    by_kind = rendered()
    job, config = by_kind["Job", "tw-migrate"], by_kind["ConfigMap", "tw-migrate"]
    hooks = [one["metadata"]["annotations"] for one in (config, job)]
    assert {one["helm.sh/hook"] for one in hooks} == {"pre-install,pre-upgrade"}
    assert int(hooks[0]["helm.sh/hook-weight"]) < int(hooks[1]["helm.sh/hook-weight"])
    assert settings_of(mounted(by_kind, "Job", "tw-migrate"), BASICS).ledger is not None
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0] == "migrate"
    assert _parser().parse_args(container["args"]).run
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.external
def test_the_console_in_the_chart_is_for_who_has_its_secret() -> None:
    by_kind = rendered(admin={"existingSecret": "mine"}, ingress={"enabled": True})
    proxy = settings_of(mounted(by_kind, "StatefulSet", "tw"), BASICS | {"TOKENWEIR_ADMIN_SECRET"})
    assert proxy.admin.secret is not None
    assert settings_of(mounted(by_kind, "Deployment", "tw-worker"), BASICS).admin.secret is None
    (container,) = by_kind["StatefulSet", "tw"]["spec"]["template"]["spec"]["containers"]
    (given,) = container["env"]
    secret = {"name": "mine", "key": "TOKENWEIR_ADMIN_SECRET"}
    assert given == {"name": "TOKENWEIR_ADMIN_SECRET", "valueFrom": {"secretKeyRef": secret}}
    assert {"name": "admin", "containerPort": proxy.admin.port} in container["ports"]
    service = by_kind["Service", "tw-admin"]["spec"]
    assert (service["type"], service["ports"][0]["targetPort"]) == ("ClusterIP", "admin")
    assert "admin" not in str(by_kind["Ingress", "tw"]["spec"])
    assert "TOKENWEIR_ADMIN_SECRET" not in str(by_kind["Deployment", "tw-worker"])


@pytest.mark.external
def test_the_comparison_in_the_chart_has_its_admin_key_to_itself() -> None:
    providers = {name: {"base_url": "https://api.openai.com/v1"} for name in ("openai", "open_ai.eu")}
    by_kind = rendered(
        config={"providers": providers}, reconcile={"providers": {"openai": "mine", "open_ai.eu": "theirs"}}
    )
    assert {name for kind, name in by_kind if kind == "CronJob"} == {"tw-reconcile-openai", "tw-reconcile-open-ai-eu"}
    job = by_kind["CronJob", "tw-reconcile-openai"]["spec"]
    assert (job["schedule"], job["timeZone"], job["concurrencyPolicy"]) == ("30 6 * * *", "Etc/UTC", "Forbid")
    assert job["jobTemplate"]["spec"]["backoffLimit"] == 0
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["securityContext"]["runAsNonRoot"]) == ("Never", True)
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    options = _parser().parse_args(container["args"])
    assert (options.provider, options.pull) == ("openai", True)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (given,) = container["env"]
    assert given["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": given["name"]}
    mine = settings_of(mounted(by_kind, "CronJob", "tw-reconcile-openai"), BASICS | {given["name"]}).providers
    assert mine["openai"].admin_key is not None
    assert [name for name, provider in mine.items() if provider.admin_key] == ["openai"]
    for kind, name in (("StatefulSet", "tw"), ("Deployment", "tw-worker")):
        assert all(
            one.admin_key is None for one in settings_of(mounted(by_kind, kind, name), BASICS).providers.values()
        )
        assert given["name"] not in str(by_kind[kind, name])


@pytest.mark.external
def test_the_comparison_in_the_chart_names_a_provider_that_is_there() -> None:
    with pytest.raises(AssertionError, match=r"reconcile\.providers\.nobody: is not one of config\.providers"):
        chart.rendered({"reconcile": {"providers": {"nobody": "mine"}}})


def test_what_the_chart_packs_is_what_is_tested() -> None:
    packed = sorted((chart.CHART / "files").iterdir(), key=lambda file: file.name)
    copies = {file.name: file.read_bytes() for file in packed}
    sources = {file.name: file.read_bytes() for file in PACKED}
    assert copies == sources, f"run: cp {' '.join(str(file.relative_to(ROOT)) for file in PACKED)} {chart.CHART}/files/"


@pytest.mark.external
def test_rules_and_dashboards_come_with_the_chart_as_they_are() -> None:
    labels = {"release": "prometheus"}
    by_kind = rendered(rules={"enabled": True, "labels": labels}, dashboards={"enabled": True})
    rules = {name: one for (kind, name), one in by_kind.items() if kind == "PrometheusRule"}
    assert {name: one["spec"] for name, one in rules.items()} == {
        f"tw-{file.name.partition('.')[0]}": yaml.safe_load(file.read_text())
        for file in PACKED
        if file.suffix == ".yml"
    }
    assert all(labels.items() <= one["metadata"]["labels"].items() for one in rules.values())
    dashboards = by_kind["ConfigMap", "tw-dashboards"]
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == {
        file.name: json.loads(file.read_text()) for file in PACKED if file.suffix == ".json"
    }


def test_the_chart_knows_this_version() -> None:
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    assert {about["appVersion"], about["version"], values["image"]["tag"]} == {__version__}
