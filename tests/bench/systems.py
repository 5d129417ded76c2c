"""The systems under test: nginx, a plain aiohttp pass-through, Tokenweir; each started alone on one CPU.

Law: a system is ready when it has relayed a request, and gone, with all its processes, when its block ends.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.load import RigError, Target, pin
from tests.support.certificates import Authority
from tests.support.net import free_port

ROOT = Path(__file__).resolve().parents[2]
PROTOTYPE = ROOT.parent / "shared" / "prototypes" / "relay.py"
START_S_MAX = 30.0  # Tokenweir migrates a new ledger first; on a busy machine that takes seconds
STOP_S_MAX = 10.0  # SIGTERM lets streams finish; none runs any more when we send it

# Long idle times: a held stream is silent for as long as the bench looks at it.
TOKENWEIR_YAML = """\
listen: {{host: 127.0.0.1, port: {port}}}
data_dir: {folder}/store
ledger: sqlite
queue: local
providers:
  bench:
    base_url: {provider}/v1
    api_key: ${{BENCH_PROVIDER_KEY}}
    dialects: [openai, anthropic, gemini, ollama]
    on_client_disconnect: cancel
    timeouts: {{connect_s: 10, first_byte_s: 120, idle_s: 300, total_s: 3600}}
models:
  "*":
    provider: bench
    price: {{input: 0.10, cached_input: 0.05, output: 0.40}}
    cost: {{input: 0.08, cached_input: 0.04, output: 0.32}}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a system is to run: a new folder, the provider's URL, its CPU, how many sockets it may open."""

    folder: Path
    provider: str
    cpu: int
    sockets_max: int
    certificate: Path | None = None
    """of a provider with TLS"""


Start = Callable[[Place], AbstractContextManager[Target]]
Made = Callable[..., dict[str, str]]
"""What a command has made and printed."""


@contextmanager
def nginx(place: Place) -> Iterator[Target]:
    """nginx with buffering off, one worker, upstream connections kept."""
    port = free_port()
    with _nginx(place, f"listen 127.0.0.1:{port} backlog=4096") as system:
        yield _when_ready(system, port, place)


@contextmanager
def _nginx(place: Place, listen: str) -> Iterator[subprocess.Popen[bytes]]:
    template = (Path(__file__).parent / "nginx.conf.template").read_text()
    # An eighth more than there are: with a sixteenth left, nginx starts to close connections that wait.
    connections = place.sockets_max * 9 // 8
    scheme, authority = place.provider.split("://")
    facts: dict[str, object] = {"LISTEN": listen, "SCHEME": scheme, "PROVIDER": authority}
    facts |= {"CONNECTIONS": connections, "FILES": place.sockets_max}
    for name, value in facts.items():
        template = template.replace(f"@{name}@", str(value))
    (place.folder / "nginx.conf").write_text(template)
    program = nginx_program()
    assert program is not None
    with _running([program, "-p", str(place.folder), "-c", "nginx.conf", "-e", "stderr"], place) as system:
        yield system


@contextmanager
def aiohttp(place: Place) -> Iterator[Target]:
    """The plain pass-through, on the event loop that Tokenweir would take."""
    port = free_port()
    loop = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
    module = [sys.executable, "-m", "tests.bench.passthrough"]
    with _running([*module, str(port), place.provider, "--loop", loop], place) as system:
        yield _when_ready(system, port, place)


@contextmanager
def tokenweir(place: Place) -> Iterator[Target]:
    """Tokenweir as anybody would run it: a configuration file, a key, `serve`; journal and ledger on."""
    with _tokenweir(place, lambda made: made("keys", "create", "--alias", "bench")["key"]) as target:
        yield replace(target, limited=partial(_limited, replace(place, folder=place.folder / "limited")))


@contextmanager
def _limited(place: Place) -> Iterator[Target]:
    """The same, for a key with budgets."""

    def key(made: Made) -> str:
        budget = ("--budget", "100000")
        organization = made("accounts", "create-organization", "bench", *budget)["account_id"]
        project = made("accounts", "create-project", "bench", "--organization", organization, *budget)["account_id"]
        return made("keys", "create", "--alias", "limited", "--project", project, *budget)["key"]

    place.folder.mkdir()
    with _tokenweir(place, key) as target:
        yield target


@contextmanager
def _tokenweir(place: Place, key: Callable[[Made], str]) -> Iterator[Target]:
    port = free_port()
    config = place.folder / "tokenweir.yaml"
    text = TOKENWEIR_YAML.format(port=port, folder=place.folder, provider=place.provider)
    config.write_text(text)
    program = [sys.executable, "-m", "proxy"]

    def made(*words: str) -> dict[str, str]:
        return _printed([*program, *words, "--config", str(config)], place)

    secret = key(made)
    with _running([*program, "serve", "--config", str(config)], place) as system:
        yield _when_ready(system, port, place, f"Authorization: Bearer {secret}")


# In place of orjson, which the prototypes import.
ORJSON = "from msgspec.json import decode as loads, encode as dumps\n"


@contextmanager
def g1(place: Place) -> Iterator[Target]:
    """The pass-through prototype in Python that meters and records nothing: what relaying alone costs."""
    port = free_port()
    (place.folder / "orjson.py").write_text(ORJSON)
    command = [sys.executable, str(PROTOTYPE), "g1", str(port), place.provider.rpartition(":")[2]]
    with _running(["env", f"PYTHONPATH={place.folder}", *command], place) as system:
        yield _when_ready(system, port, place)


SYSTEMS: Mapping[str, Start] = {"nginx": nginx, "aiohttp": aiohttp, "g1": g1, "tokenweir": tokenweir}


def why_absent(name: str) -> str | None:
    """Why a system cannot run here; None when it can."""
    if name == "nginx" and nginx_program() is None:
        return "nginx is not installed here: no ratios"
    if name == "g1" and not PROTOTYPE.exists():
        return "the prototypes are not at hand"
    return None


def nginx_program() -> str | None:
    """Debian keeps it where an ordinary user's PATH does not look."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def memory_kib(target: Target) -> int:
    """Anonymous and shared memory of all processes of a target, in KiB: resident, but for pages of files.

    Pages of files (programs, the journal) are the page cache's: the kernel takes them back when it likes.
    """
    wanted = ("Anonymous:", "Pss_Shmem:")
    tables = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in target.pids]
    lines = "".join(tables).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(wanted))


def _options(place: Place) -> dict[str, Any]:
    trusted = {} if place.certificate is None else {"SSL_CERT_FILE": str(place.certificate)}
    environment = {**os.environ, **trusted, "BENCH_PROVIDER_KEY": "sk-bench"}
    return {"cwd": ROOT, "env": environment, "preexec_fn": partial(pin, place.cpu)}


@contextmanager
def with_tls(folder: Path, provider_port: int, cpu: int) -> Iterator[tuple[str, Path]]:
    """Something that speaks TLS and hands on to the provider, on this CPU: its URL and its certificate."""
    authority = Authority(folder)
    made = authority.issue("provider")
    place = Place(folder, f"http://127.0.0.1:{provider_port}", cpu, sockets_max=2000)
    port = free_port()
    listen = f"listen 127.0.0.1:{port} ssl backlog=4096; ssl_certificate {made.cert}; ssl_certificate_key {made.key}"
    with _nginx(place, listen) as system:
        _wait_until(lambda: _listens(port), system, folder)
        yield f"https://127.0.0.1:{port}", authority.file


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _printed(argv: list[str], place: Place) -> dict[str, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **_options(place))
    if done.returncode:
        raise RigError(f"it cannot be set up: {done.stderr.strip()[-2000:]}")
    printed = json.loads(done.stdout)
    assert isinstance(printed, dict)
    return printed


@contextmanager
def _running(argv: list[str], place: Place) -> Iterator[subprocess.Popen[bytes]]:
    with (place.folder / "log").open("wb") as log:
        # A group of its own: what it starts can be ended with it.
        system = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, **_options(place))
    try:
        yield system
    finally:
        _stop(system)


def _stop(system: subprocess.Popen[bytes]) -> None:
    system.terminate()
    with suppress(subprocess.TimeoutExpired):
        system.wait(STOP_S_MAX)
    with suppress(ProcessLookupError):
        os.killpg(system.pid, signal.SIGKILL)
    system.wait()


def family(pid: int) -> tuple[int, ...]:
    """A process and all that it started, by id, itself first."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for child in " ".join(lists).split()]
    return (pid, *(one for child in children for one in family(child)))


def _when_ready(system: subprocess.Popen[bytes], port: int, place: Place, *headers: str) -> Target:
    _wait_until(lambda: _relays(port, headers), system, place.folder)
    return Target(port, headers, family(system.pid))


def _wait_until(holds: Callable[[], bool], system: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not holds():
        if time.monotonic() > deadline or system.poll() is not None:
            raise RigError(f"{folder.name} did not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _relays(port: int, headers: tuple[str, ...]) -> bool:
    body = json.dumps({"model": "bench-json", "messages": [{"role": "user", "content": "Are you there?"}]})
    named = dict(header.split(": ", 1) for header in headers) | {"Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/v1/chat/completions", body, named)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
