"""Kubernetes' own API server on loopback, for helm: it validates and stores, and no controller runs what it stores."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import yaml

from tests.deploy.edges import program
from tests.support.certificates import Authority
from tests.support.net import free_port
from tests.support.waiting import wait_until

START_S_MAX = 60.0
_CRDS = Path(__file__).parent / "crds"
_TOKEN = "token-of-the-test"


class ApiServer:
    """`start` it, then `close` it. `kubeconfig`: for helm."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._folder = folder
        self._port, self._etcd_port = free_port(), free_port()
        self._stops = ExitStack()
        authority = Authority(folder)
        self._issued, self._context = authority.issue("apiserver"), ssl.create_default_context(cafile=authority.file)
        (folder / "tokens.csv").write_text(f'{_TOKEN},admin,1,"system:masters"\n')
        self.kubeconfig.write_text(yaml.safe_dump({
            "clusters": [{"name": "a", "cluster": {"server": self._url, "certificate-authority": str(authority.file)}}],
            "users": [{"name": "a", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        }))  # fmt: skip

    @property
    def _url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it is ready."""
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        self._run(
            "etcd", "--data-dir", str(self._folder / "etcd"),
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", f"http://127.0.0.1:{free_port()}",
        )  # fmt: skip
        self._run(
            "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={self._port}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={self._issued.cert}", f"--tls-private-key-file={self._issued.key}",
            "--service-account-issuer=https://localhost", f"--service-account-signing-key-file={self._issued.key}",
            f"--service-account-key-file={self._issued.cert}", f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=AlwaysAllow", "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24,fd00::/112",
        )  # fmt: skip
        wait_until(
            self._is_ready, lambda: (self._folder / "kube-apiserver.log").read_text()[-2000:], within_s=START_S_MAX
        )

    def close(self) -> None:
        self._stops.close()

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """The status and the object; if it is refused, the reason is `message`."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self._url + path, method=method, data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {_TOKEN}", "Content-Type": kind},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, context=self._context) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            text = error.read().decode()
            return error.code, json.loads(text) if text.startswith("{") else {"message": text}

    def add_crds(self) -> None:
        """Of the kinds in `crds/`; returns when they are served."""
        for file in _CRDS.iterdir():
            kind, text = file.stem, file.read_text()
            group = "gateway.networking.k8s.io" if kind == "httproute" else "monitoring.coreos.com"
            names = {"kind": json.loads(text)["x-kind"], "plural": f"{kind}s", "singular": kind}
            schema = {word: one for word, one in json.loads(text).items() if word not in ("$comment", "x-kind")}
            version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            made = {
                "metadata": {
                    "name": f"{kind}s.{group}",
                    "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
                },
                "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
            }
            status, answer = self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
            assert status == 201, answer
            wait_until(lambda path=f"/apis/{group}/v1/{kind}s": self.call("GET", path)[0] == 200)

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/version")[0] == 200 and self.call("GET", "/api/v1/namespaces/default")[0] == 200
        except OSError:
            return False

    def _run(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            child = subprocess.Popen([program(name), *arguments], stdout=log, stderr=log)
        self._stops.callback(child.wait)
        self._stops.callback(child.terminate)
