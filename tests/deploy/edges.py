"""The edges of deploy/edge as tests run them: the shipped file, with this machine's ports and a new certificate.

Law: what is replaced must stand in the file, and nothing else is changed: what is proven is what is shipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.net import free_port

EDGES = Path(__file__).parents[2] / "deploy" / "edge"
START_S_MAX = 15.0


def program(name: str) -> str:
    """Where it is; skips the test if nowhere. Debian keeps servers, and Go its programs, where a user's PATH may not
    look."""
    found = shutil.which(name) or shutil.which(name, path=f"/usr/sbin:/usr/local/sbin:{Path.home()}/go/bin")
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


def rewritten(name: str, changes: Mapping[str, str]) -> str:
    """The shipped file with these changes; each must apply."""
    text = (EDGES / name).read_text()
    for old, new in changes.items():
        assert old in text, f"{name} has no {old!r} any more"
        text = text.replace(old, new)
    return text


class Edge:
    """One of them, running in front of Tokenweir. End it with `close`."""

    def __init__(self, kind: str, folder: Path, upstream_port: int) -> None:
        authority = Authority(folder)
        self.kind = kind
        self.authority, self.issued = authority.file, authority.issue("edge")
        """in PEM: who trusts it trusts this edge; the edge's certificate for localhost, and its key"""
        self.port = free_port()
        self.url = f"https://localhost:{self.port}"
        self.log = folder / "edge.log"
        self._command = _COMMANDS[kind](self, folder, f"127.0.0.1:{upstream_port}")
        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(self._command, cwd=folder, env=environment, stdout=log, stderr=log)
        self._until_it_listens()

    def _until_it_listens(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while True:
            assert self._child.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"it does not listen: {self.log.read_text()[-2000:]}"
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.02)

    def close(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _nginx(edge: Edge, folder: Path, upstream: str) -> Sequence[str]:
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    text = rewritten(
        "nginx.conf",
        {
            "user www-data;\n": "",
            "/run/nginx.pid": str(folder / "nginx.pid"),
            "listen 443 ": f"listen 127.0.0.1:{edge.port} ",
            "/etc/tokenweir/tls/fullchain.pem": str(edge.issued.cert),
            "/etc/tokenweir/tls/privkey.pem": str(edge.issued.key),
            "server tokenweir-1:8080": f"server {upstream}",
            "        server tokenweir-2:8080 max_fails=2 fail_timeout=5s;\n": "",
            "http {\n": "http {\n" + "".join(f"    {name}_temp_path {folder / name};\n" for name in temporary),
        },
    )
    (folder / "nginx.conf").write_text(text)
    return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr", "-g", "daemon off;"]


def _haproxy(edge: Edge, folder: Path, upstream: str) -> Sequence[str]:
    both = folder / "both.pem"
    both.write_bytes(edge.issued.cert.read_bytes() + edge.issued.key.read_bytes())
    text = rewritten(
        "haproxy.cfg",
        {
            "maxconn 16384": "maxconn 2048",  # it will not start where it may not open twice as many files
            "bind :443 ": f"bind 127.0.0.1:{edge.port} ",
            "/etc/tokenweir/tls/edge.pem": str(both),
            "tokenweir-1:8080": upstream,
            "    server tokenweir-2 tokenweir-2:8080\n": "",
        },
    )
    (folder / "haproxy.cfg").write_text(text)
    return [program("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


def _caddy(edge: Edge, folder: Path, upstream: str) -> Sequence[str]:
    given = f"tls {edge.issued.cert} {edge.issued.key}\n"
    text = rewritten(
        "Caddyfile",
        {
            "admin off\n": "admin off\n\tauto_https disable_redirects\n\tskip_install_trust\n",
            "llm.example.com {\n": f"https://localhost:{edge.port} {{\n\tbind 127.0.0.1\n\t{given}",
            "tokenweir-1:8080 tokenweir-2:8080": upstream,
        },
    )
    (folder / "Caddyfile").write_text(text)
    return [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


_COMMANDS = {"nginx": _nginx, "haproxy": _haproxy, "caddy": _caddy}
