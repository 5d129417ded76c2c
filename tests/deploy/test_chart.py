"""The chart's features: Kubernetes takes what they make, a typo is refused by name, and an upgrade is possible.

What the parts of the chart mean together with the program is in test_files.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy import chart
from tests.deploy.chart import manifests, pods
from tests.deploy.chart_values import ALL, CA, EDGE, FEATURES, REGION, VALUES_OF_0_1
from tests.deploy.kubernetes import faults
from tests.deploy.prefixes import prefixes

# Each is named; the last part is the typo.
TYPOS = [
    "imagePullSecret", "image.tags", "admin.secret", "proxy.replica", "proxy.autoscaling.enable",
    "proxy.journal.sise", "proxy.resources.request", "worker.replica", "migrate.resource", "reconcile.provider",
    "service.ipFamily", "ingress.hosts", "httpRoute.parentRef", "httpRoute.timeouts.backend",
    "networkPolicy.client", "networkPolicy.egress.postgresql", "networkPolicy.egress.dns.port",
    "podMonitor.enable", "rules.enable", "dashboards.label", "serviceAccount.annotation", "nodeSelectors",
    "config.shutdown_grace", "config.listen.prot", "config.models.gpt-4o-mini.pric",
    "config.providers.openai.apikey",
]  # fmt: skip
# values → what helm says: the value, and what it must be
REFUSED = {
    "no time to stop": (
        {"config": {"drain_delay_s": 20, "shutdown_grace_s": 90.5}},
        "proxy.terminationGracePeriodSeconds: must be at least 125.5: ",
    ),
    "no gateway": ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: must name the Gateway"),
    "fewer at most than at least": (
        {"proxy": {"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 2}}},
        "proxy.autoscaling.maxReplicas: must be at least minReplicas, 3",
    ),
    "a family that is none": ({"service": {"ipFamilies": ["IPv5"]}}, "/service/ipFamilies/0"),
    "an empty image": ({"image": {"repository": ""}}, "/image/repository"),
    "a text for a number": ({"proxy": {"replicas": "2"}}, "/proxy/replicas"),
    "no secret": ({"existingSecret": ""}, "/existingSecret"),
    "values of an earlier chart": (  # what --reuse-values leaves
        dict.fromkeys(("networkPolicy", "serviceAccount", "httpRoute", "imagePullSecrets", "extraEnv")),
        "use --reset-then-reuse-values in place of --reuse-values",
    ),
    "a list for one": ({"httpRoute": {"parentRefs": {"name": "a"}}}, "/httpRoute/parentRefs"),
}
# Kubernetes refuses an upgrade that changes one of these. They are those of 0.1.0: never change them.
IMMUTABLE = {
    ("StatefulSet", "tw"): {
        "podManagementPolicy": "Parallel",
        "selector": {
            "matchLabels": {"app.kubernetes.io/instance": "tw", "app.kubernetes.io/component": "proxy"},
        },
        "serviceName": "tw-proxies",
        "volumeClaimTemplates": [{
            "metadata": {"name": "journal"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}},
        }],
    },
    ("Deployment", "tw-worker"): {
        "selector": {
            "matchLabels": {"app.kubernetes.io/instance": "tw", "app.kubernetes.io/component": "worker"},
        },
    },
    ("Service", "tw-proxies"): {"clusterIP": "None"},
}  # fmt: skip


def properties(schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every value that the schema names, but for those of `config` and of `resources`."""
    for name, one in schema.get("properties", {}).items():
        if name not in ("config", "global"):
            known = {**root["definitions"].get(one.get("$ref", "").rpartition("/")[2], {}), **one}
            yield f"{path}{name}", known
            if name != "resources":
                yield from properties(known, root, f"{path}{name}.")


@pytest.mark.external
@pytest.mark.parametrize("feature", [*FEATURES, "all"])
def test_kubernetes_takes_what_the_chart_makes(feature: str) -> None:
    made = manifests(FEATURES.get(feature, ALL))
    assert {name: found for name, one in made.items() if (found := faults(one))} == {}
    if feature != "none":
        assert made != manifests({}), "the values have an effect"


@pytest.mark.external
def test_a_wrong_manifest_would_be_found() -> None:
    made = manifests(ALL)
    wrong = {
        ("StatefulSet", "tw"): ("template", "spec", "nodeSelectors"),
        ("NetworkPolicy", "tw"): ("egresses",),
        ("HTTPRoute", "tw"): ("rules", 0, "timeout"),
        ("PodMonitor", "tw"): ("podMetricsEndpoints", 0, "intervals"),
        ("PrometheusRule", "tw-alerts"): ("groups", 0, "rule"),
    }
    for name, (*path, typo) in wrong.items():
        place: Any = made[name]["spec"]
        for step in path:
            place = place[step]
        place[typo] = {}
        assert typo in "".join(faults(made[name])), name


@pytest.mark.external
@pytest.mark.parametrize("values", [{}, ALL], ids=["defaults", "all"])
def test_helm_finds_no_fault_in_the_chart(values: dict[str, Any]) -> None:
    linted = chart.helm("lint", "--strict", str(chart.CHART), values=values)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.external
def test_a_typo_is_refused_by_name() -> None:
    values: dict[str, Any] = {}
    for path in TYPOS:
        place, (*sections, typo) = values, path.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[typo] = "x"
    refused = chart.template(values)
    assert refused.returncode != 0
    found = dict(re.findall(r"at '([^']*)': additional properties (.+) not allowed", refused.stderr))
    said = {f"{place}/{typo}".strip("/") for place, typos in found.items() for typo in re.findall(r"'([^']+)'", typos)}
    assert said == {path.replace(".", "/") for path in TYPOS}


@pytest.mark.external
@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_work_is_refused_with_the_value(why: str) -> None:
    values, message = REFUSED[why]
    refused = chart.template(values)
    assert refused.returncode != 0
    assert message in refused.stderr


@pytest.mark.external
def test_every_pod_has_no_rights_and_what_all_pods_get() -> None:
    found = dict(pods(manifests(ALL)))
    assert set(found) == {"proxy", "worker", "migrate", "reconcile"}
    for component, pod in found.items():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert [pod[name] for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity")] == [
            ALL[name] for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity")
        ]
        # The job runs before the account exists.
        assert pod.get("serviceAccountName") == (None if component == "migrate" else "tw")
        spread = [one["labelSelector"]["matchLabels"] for one in pod.get("topologySpreadConstraints", ())]
        own = {"app.kubernetes.io/instance": "tw", "app.kubernetes.io/component": component}
        assert spread == ([own] if component in ("proxy", "worker") else [])
        assert CA in pod["volumes"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert REGION in container["env"]
        assert [one["secretRef"]["name"] for one in container["envFrom"]] == ["tokenweir", "more"]
        assert "/etc/ca" in [mount["mountPath"] for mount in container["volumeMounts"]]


@pytest.mark.external
def test_an_account_of_ones_own_is_that_of_every_pod() -> None:
    made = manifests({"serviceAccount": {"name": "mine"}})
    assert {pod["serviceAccountName"] for _, pod in pods(made)} == {"mine"}
    assert "ServiceAccount" not in {kind for kind, _ in made}


@pytest.mark.external
def test_the_autoscaler_sets_the_number_of_proxies_and_lets_each_end_its_streams() -> None:
    made = manifests(FEATURES["autoscaling"])
    proxies, scaler = made["StatefulSet", "tw"]["spec"], made["HorizontalPodAutoscaler", "tw"]["spec"]
    assert "replicas" not in proxies
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "tw"}
    stop_s = proxies["template"]["spec"]["terminationGracePeriodSeconds"]
    assert scaler["behavior"]["scaleDown"] == {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": stop_s}],
    }


@pytest.mark.external
def test_the_route_of_the_gateway_is_that_of_the_ingress() -> None:
    made = manifests(FEATURES["http route"])
    route, service = made["HTTPRoute", "tw"]["spec"], made["Service", "tw"]["spec"]
    assert [match["path"] for rule in route["rules"] for match in rule["matches"]] == [
        {"type": "PathPrefix", "value": f"/{prefix}"} for prefix in prefixes()
    ]
    for rule in route["rules"]:
        assert rule["backendRefs"] == [{"name": "tw", "port": service["ports"][0]["port"]}]
        assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}


@pytest.mark.external
def test_null_leaves_a_part_out() -> None:
    """An empty one would be merged with the default."""
    made = manifests({
        "httpRoute": {**FEATURES["http route"]["httpRoute"], "timeouts": None},
        "networkPolicy": {"enabled": True, "egress": {"redis": None}},
    })  # fmt: skip
    assert "timeouts" not in str(made["HTTPRoute", "tw"])
    assert "6379" not in str(made["NetworkPolicy", "tw"])
    assert {name: found for name, one in made.items() if (found := faults(one))} == {}


@pytest.mark.external
def test_policies_let_in_clients_and_prometheus_and_out_to_what_is_needed() -> None:
    values = {**FEATURES["network"], **FEATURES["console"]}
    made = manifests(values)
    policies = {name: one["spec"] for (kind, name), one in made.items() if kind == "NetworkPolicy"}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    proxies = {"app.kubernetes.io/instance": "tw", "app.kubernetes.io/component": "proxy"}

    def ports(rule: dict[str, Any]) -> set[tuple[int, str]]:
        return {(one["port"], one.get("protocol", "TCP")) for one in rule["ports"]}

    assert policies["tw"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policies["tw"]
    for one in made.values():
        template = one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels")
        assert template is None or policies["tw"]["podSelector"]["matchLabels"].items() <= template.items()
    assert [ports(rule) for rule in policies["tw"]["egress"]] == [
        {(53, "TCP"), (53, "UDP")}, {(5432, "TCP")}, {(6379, "TCP")}, {(443, "TCP")}, {(8080, "TCP")}, {(4318, "TCP")},
    ]  # fmt: skip
    clients, operators = policies["tw-proxies"]["ingress"]
    assert (ports(clients), clients["from"]) == (
        {(8080, "TCP")}, [*EDGE, {"podSelector": {"matchLabels": proxies}}, monitoring],
    )  # fmt: skip
    assert (ports(operators), operators["from"]) == ({(8090, "TCP")}, EDGE)
    (metrics,) = policies["tw-workers"]["ingress"]
    assert (ports(metrics), metrics["from"]) == ({(8081, "TCP")}, [monitoring])


@pytest.mark.external
def test_services_have_both_families_and_every_listener_all_addresses() -> None:
    made = manifests({**FEATURES["dual stack"], **FEATURES["console"]})
    services = {name: one["spec"] for (kind, name), one in made.items() if kind == "Service"}
    assert set(services) == {"tw", "tw-proxies", "tw-admin"}
    for spec in services.values():
        assert (spec["ipFamilyPolicy"], spec["ipFamilies"]) == ("PreferDualStack", ["IPv6", "IPv4"])
    config = yaml.safe_load(made["ConfigMap", "tw"]["data"]["tokenweir.yaml"])
    assert {config[listener]["host"] for listener in ("listen", "worker", "admin")} == {"*"}


@pytest.mark.external
def test_ports_and_the_rest_of_the_console_are_those_of_the_configuration() -> None:
    config = {"listen": {"port": 9000}, "worker": {"port": 9001}, "admin": {"port": 9002}}
    made = manifests({**FEATURES["console"], **FEATURES["network"], "config": config})
    ports = {
        component: {one["containerPort"] for one in pod["containers"][0].get("ports", ())}
        for component, pod in pods(made)
    }
    assert (ports["proxy"], ports["worker"]) == ({9000, 9002}, {9001})
    data = made["ConfigMap", "tw"]["data"]
    assert yaml.safe_load(data["tokenweir.yaml"])["admin"] == {
        "host": "*", "port": 9002, "secret": "${TOKENWEIR_ADMIN_SECRET}",
    }  # fmt: skip
    assert "admin" not in yaml.safe_load(data["worker.yaml"])
    assert "admin" not in yaml.safe_load(made["ConfigMap", "tw-migrate"]["data"]["tokenweir.yaml"])
    assert made["Service", "tw-proxies"]["spec"]["ports"][0]["port"] == 9000
    assert {rule["ports"][0]["port"] for rule in made["NetworkPolicy", "tw-proxies"]["spec"]["ingress"]} == {9000, 9002}


@pytest.mark.external
def test_operators_alone_have_the_console_too() -> None:
    """Without the secret of `admin`."""
    config = {"admin": {"operators": {"anna": {"secret": "${ANNA_SECRET}"}}}}
    made = manifests({"config": config})
    assert ("Service", "tw-admin") in made
    [proxy] = [pod for component, pod in pods(made) if component == "proxy"]
    assert "admin" in {one["name"] for one in proxy["containers"][0]["ports"]}
    assert yaml.safe_load(made["ConfigMap", "tw"]["data"]["tokenweir.yaml"])["admin"] == {
        "host": "*", "port": 8090, **config["admin"],
    }  # fmt: skip
    assert ("Service", "tw-admin") not in manifests({"config": {"admin": {}}})


@pytest.mark.external
@pytest.mark.parametrize("restarts", [True, False])
def test_a_change_of_the_configuration_restarts_proxies_or_does_not(restarts: bool) -> None:
    def templates(grace_s: int) -> dict[str, Any]:
        made = manifests({"proxy": {"restartOnConfigChange": restarts}, "config": {"shutdown_grace_s": grace_s}})
        return {
            kind: made[kind, name]["spec"]["template"]
            for kind, name in (("StatefulSet", "tw"), ("Deployment", "tw-worker"))
        }

    before, after = templates(30), templates(40)
    assert (before["StatefulSet"] != after["StatefulSet"]) == restarts
    assert before["Deployment"] != after["Deployment"]
    # kubelet does not renew a file that is mounted by its subPath.
    assert "subPath" not in json.dumps(after)


@pytest.mark.external
@pytest.mark.parametrize("values", [{}, VALUES_OF_0_1, ALL], ids=["defaults", "values of 0.1", "all"])
def test_an_upgrade_from_0_1_changes_nothing_immutable(values: dict[str, Any]) -> None:
    made = manifests(values)
    for name, fields in IMMUTABLE.items():
        assert {field: made[name]["spec"].get(field) for field in fields} == fields
    claims = {kind for kind, _ in made if kind == "PersistentVolumeClaim"}
    assert claims == set(), "a claim of the chart would be deleted with the release"


def test_every_value_is_described_and_has_a_default() -> None:
    schema = json.loads(chart.VALUES_SCHEMA.read_text())
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    for path, one in properties(schema, schema):
        assert one["description"], path
        default: Any = values
        for step in path.split("."):
            assert step in default, f"values.yaml has no {path}"
            default = default[step]


def test_the_schema_has_todays_settings() -> None:
    text = chart.VALUES_SCHEMA.read_text()
    assert text == chart.written(text), "run: python -m tests.deploy.chart"
