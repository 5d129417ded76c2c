"""The chart on Kubernetes' own API server: installs and upgrades by a real helm.

Needs `kube-apiserver` (tests/deploy/kube-apiserver.sh builds it) and `etcd` (Debian: etcd-server); a part of make real.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy import chart
from tests.deploy.apiserver import ApiServer
from tests.deploy.chart import manifests, pods
from tests.deploy.chart_values import ALL, VALUES_OF_0_1

pytestmark = [pytest.mark.real, pytest.mark.process, pytest.mark.io]

NAMESPACE = "llm"
PROXIES = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/tw"
# The first family of a service that exists cannot change.
ALL_OF_IT = {**VALUES_OF_0_1, **ALL, "service": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("apiserver"))
    try:
        server.start()
        server.add_crds()
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        yield server
    finally:
        server.close()


def helm(server: ApiServer, *arguments: str, values: dict[str, Any]) -> None:
    """Without the hook: no controller would run its job."""
    place = ("--kubeconfig", str(server.kubeconfig), "--namespace", NAMESPACE, "--no-hooks")
    done = chart.helm(*arguments, *place, values=values)
    assert done.returncode == 0, done.stderr


def test_the_chart_is_installed_upgraded_with_every_part_and_back(server: ApiServer) -> None:
    def replicas() -> int:
        found: int = server.call("GET", PROXIES)[1]["spec"]["replicas"]
        return found

    helm(server, "install", "tw", str(chart.CHART), values=VALUES_OF_0_1)
    server.call("PATCH", f"{PROXIES}/scale", {"spec": {"replicas": 5}})
    helm(server, "upgrade", "tw", str(chart.CHART), values=ALL_OF_IT)
    assert replicas() == 5, "the autoscaler begins with the proxies that are there"
    for path in (
        "/apis/autoscaling/v2/namespaces/llm/horizontalpodautoscalers/tw",
        "/apis/networking.k8s.io/v1/namespaces/llm/networkpolicies/tw-proxies",
        "/apis/gateway.networking.k8s.io/v1/namespaces/llm/httproutes/tw",
        "/apis/monitoring.coreos.com/v1/namespaces/llm/podmonitors/tw",
    ):
        assert server.call("GET", path)[0] == 200, path
    helm(server, "upgrade", "tw", str(chart.CHART), values=VALUES_OF_0_1)
    assert replicas() == VALUES_OF_0_1["proxy"]["replicas"]


def test_every_pod_is_admitted_where_the_rules_are_strictest(server: ApiServer) -> None:
    made = manifests(ALL)
    for component, pod in pods(made):
        claimed = [{"name": "journal", "emptyDir": {}}] if component == "proxy" else []
        spec = {**pod, "restartPolicy": pod.get("restartPolicy", "Always"), "volumes": [*pod["volumes"], *claimed]}
        body = {"metadata": {"generateName": "pod-"}, "spec": spec}
        status, answer = server.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", body)
        assert status == 201, (component, answer.get("message"))
    status, answer = server.call(
        "POST", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs?dryRun=All", made["Job", "tw-migrate"]
    )
    assert status == 201, answer.get("message")
