"""Values of the chart for tests: one set for each of its features, and those of 0.1.0."""

from __future__ import annotations

from typing import Any

import yaml

EDGE = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
CA = {"name": "ca", "configMap": {"name": "ca"}}
REGION = {"name": "AWS_REGION", "value": "eu-central-1"}
NODES = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["llm"]}]}]
FEATURES: dict[str, dict[str, Any]] = {
    "none": {},
    "autoscaling": {"proxy": {"autoscaling": {"enabled": True, "metrics": [
        {"type": "Pods", "pods": {
            "metric": {"name": "streams"}, "target": {"type": "AverageValue", "averageValue": "400"},
        }},
    ]}}},
    "console": {"admin": {"existingSecret": "admin"}},
    "dashboards": {"dashboards": {"enabled": True}},
    "dual stack": {"service": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}},
    "environment": {"extraEnv": [REGION], "extraEnvFrom": [{"secretRef": {"name": "more"}}]},
    "files": {"extraVolumes": [CA], "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}]},
    "http route": {"httpRoute": {
        "enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}],
        "hostnames": ["llm.example.com"], "annotations": {"a": "b"},
    }},
    "identity": {"serviceAccount": {"create": True, "annotations": {"eks.amazonaws.com/role-arn": "arn"}}},
    "ingress": {"ingress": {"enabled": True}},
    "network": {"networkPolicy": {
        "enabled": True, "clients": EDGE, "operators": EDGE,
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 4318}]}],
    }},
    "placement": {
        "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": NODES},
        }},
        "nodeSelector": {"kubernetes.io/arch": "arm64"}, "tolerations": [{"key": "llm", "operator": "Exists"}],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        }],
    },
    "pod monitor": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "reconcile": {"reconcile": {"providers": {"openai": "openai-admin"}}},
    "registry": {"imagePullSecrets": [{"name": "registry"}]},
    "rules": {"rules": {"enabled": True}},
}  # fmt: skip
ALL = {name: value for feature in FEATURES.values() for name, value in feature.items()}
# Every value that 0.1.0 had, but for resources.
VALUES_OF_0_1: dict[str, Any] = yaml.safe_load("""
image: {repository: registry.example/tokenweir, tag: "0.1.0", pullPolicy: Always}
existingSecret: mine
config:
  listen: {host: 0.0.0.0, port: 8080}
  worker: {host: 0.0.0.0, port: 8081}
  data_dir: /var/lib/tokenweir
  queue: ${REDIS_URL}
  ledger: ${DATABASE_URL}
  key_pepper: ${TOKENWEIR_PEPPER}
  shutdown_grace_s: 90
  providers: {openai: {base_url: "https://api.openai.com/v1", api_key: "${OPENAI_API_KEY}"}}
  models: {"*": {provider: openai}}
admin: {existingSecret: admin}
proxy: {replicas: 3, terminationGracePeriodSeconds: 120, journal: {storageClassName: "", size: 4Gi}}
worker: {replicas: 2, terminationGracePeriodSeconds: 60}
reconcile: {providers: {openai: openai-admin}, schedule: "30 6 * * *"}
service: {type: LoadBalancer, port: 80}
ingress: {enabled: true, className: nginx, host: llm.example.com, tlsSecret: tls, annotations: {a: b}}
podMonitor: {enabled: true, interval: 15s, labels: {a: b}}
rules: {enabled: true, labels: {a: b}}
dashboards: {enabled: true, labels: {a: b}}
nodeSelector: {a: b}
tolerations: [{key: a, operator: Exists}]
""")
