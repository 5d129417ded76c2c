"""`tokenweir doctor` against real broken things: it names what is wrong and what to do, and shows no secret."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.billing.limits import Limits
from proxy.cli import main
from proxy.doctor import configuration, machine, providers
from proxy.doctor.clocks import clock_finding
from proxy.doctor.examine import Check, checks, examine
from proxy.doctor.finding import CheckedDeployment, Finding, Severity, ok
from proxy.journal.journal import Journal
from proxy.ledger.schema.migrate import migrate
from proxy.ledger.schema.partitions import partition_name
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import Settings, parse
from proxy.storage.database import writing
from tests.journal.records import opened, record
from tests.support.identity_provider import IdentityProvider
from tests.support.net import closed_port
from tests.support.postgres import Server
from tests.support.provider import ScriptedProvider, json_instead
from tests.support.tokenweir import provider_section
from tests.support.valkey import Valkey

pytestmark = pytest.mark.io

SECRET = "sk-canary-of-the-doctor-9c41"
PEPPER = "5e" * 32
ADMIN = "a-secret-of-0123456789-abcdefghij"
# What the doctor says of what other machines reach.
REACHED = ("listen.host 0.0.0.0: other", "/metrics at listen.host 0.0.0.0 ", "admin.host ::: other")
PRICE = {"input": 1, "output": 2}


def settings_of(folder: Path, base_url: str = "http://127.0.0.1:1/v1", **more: Any) -> Settings:
    """One provider, and whatever else."""
    raw: dict[str, Any] = {
        "providers": {"scripted": provider_section(base_url)},
        "models": {"m": {"provider": "scripted", "price": PRICE}},
        **more,
    }
    env = {"TEST_PROVIDER_KEY": SECRET, **{name: str(more[name]) for name in ("ledger", "queue") if name in more}}
    return parse(yaml.safe_dump(raw), env=env | {"PEPPER": PEPPER, "ADMIN": ADMIN}, folder=folder)


def case_of(
    folder: Path, base_url: str = "http://127.0.0.1:1/v1", call: str | None = None, **more: Any
) -> CheckedDeployment:
    return CheckedDeployment(settings_of(folder, base_url, **more), time.time(), call)


def looked(case: CheckedDeployment, *names: str) -> list[Finding]:
    return examine(case, [check for check in checks(case) if check.name in names])


def marks(found: list[Finding]) -> dict[str, str]:
    """The worst mark of each check."""
    worst: dict[str, str] = {}
    for one in sorted(found, key=lambda finding: list(Severity).index(finding.severity)):
        worst[one.check] = one.severity.value
    return worst


def said(found: list[Finding]) -> str:
    """All that is said of what is not well, with the advice."""
    return "\n".join(f"{one.message} → {one.advice}" for one in found if one.severity != Severity.OK)


class Upstream:
    """A provider's list of models: answers with `status`, its clock `ahead_s` of ours."""

    def __init__(self) -> None:
        self.status, self.ahead_s, self.keys = 200, 0.0, list[str]()
        self.kind, self.asked = "", list[str]()
        self.paths: dict[str, tuple[int, bytes]] | None = None
        """`GET /path` → status and body, and 404 for all else; None: `status` for all"""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.keys.append(self.headers["Authorization"])
                outer.asked.append(f"{self.command} {self.path}")
                status, body = outer.status, b""
                if outer.paths is not None:
                    status, body = outer.paths.get(outer.asked[-1].partition("?")[0], (404, b'{"detail":"Not Found"}'))
                self.send_response_only(status)
                if outer.kind:
                    self.send_header("x-amzn-ErrorType", outer.kind)
                self.send_header("Date", formatdate(time.time() + outer.ahead_s, usegmt=True))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    yield server
    server.close()


def test_a_deployment_that_is_well(
    tmp_path: Path, upstream: Upstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a command, from end to end; `--json` says the same."""
    file = tmp_path / "tokenweir.yaml"
    section = {"base_url": upstream.base_url, "api_key": "${DOCTOR_TEST_KEY}"}
    models = {"m": {"provider": "own", "price": PRICE}}
    file.write_text(yaml.safe_dump({"providers": {"own": section}, "models": models, "exchanges_max": 1}))
    monkeypatch.setenv("DOCTOR_TEST_KEY", SECRET)
    assert main(["keys", "create", "--config", str(file), "--alias", "a"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--config", str(file)]) == 0
    words = capsys.readouterr().out
    assert "✗" not in words
    assert words.endswith("\nno check failed\n")
    assert main(["doctor", "--json", "--config", str(file)]) == 0
    report = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["check"] for one in report} >= {"configuration", "ledger", "keys", "provider own", "open files"}
    assert upstream.keys == [f"Bearer {SECRET}"] * 2
    assert SECRET not in words + json.dumps(report)


def test_a_file_that_cannot_be_read_says_which_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    file = tmp_path / "tokenweir.yaml"
    file.write_text("providers: {a: {base_url: 'https://a.test/v1', api_key: '${NOT_SET_ANYWHERE}'}}\nmodels: {}\n")
    assert main(["doctor", "--config", str(file)]) == 1
    assert "providers.a.api_key: the environment variable NOT_SET_ANYWHERE is not set" in capsys.readouterr().out


def test_it_makes_nothing(tmp_path: Path) -> None:
    """Neither a folder nor a ledger: whoever serves would find them owned by somebody else."""
    folder = tmp_path / "empty"
    folder.mkdir()
    case = case_of(folder)
    found = looked(case, "data folder", "journal", "ledger")
    assert marks(found) == {"data folder": "warning", "journal": "ok", "ledger": "warning"}
    assert list(folder.iterdir()) == []


def test_what_is_unwise_in_a_configuration_that_is_allowed(tmp_path: Path) -> None:
    case = case_of(
        tmp_path,
        "http://10.9.8.7/v1",
        listen={"host": "0.0.0.0"},
        admin={"host": "::", "secret": "${ADMIN}"},
        allow_literal_secrets=True,
        providers={
            "scripted": provider_section("http://10.9.8.7/v1"),
            "unused": provider_section("https://unused.test/v1"),
            "openai": provider_section("https://api.openai.com/v1"),
            "drained": provider_section("https://api.openai.com/v1", on_client_disconnect="drain"),
        },
        models={
            "*": {"provider": "openai"},
            "thinker": {"provider": "openai", "upstream_model": "o4-mini"},
            "drained": {"provider": "drained", "upstream_model": "o4-mini"},
            "plain": {"provider": "openai", "upstream_model": "gpt-4o-mini"},
            "own": {"provider": "scripted", "price": PRICE},
        },
    )
    words = said(configuration.settings_valid(case))
    unwise = (*REACHED, "literal", "unencrypted", "unused: no model")
    assert [word for word in unwise if word not in words] == []
    assert "*: a matching model that has no price" in said(configuration.prices(case))
    assert "*, thinker: reasoning is billed" in said(configuration.hidden_reasoning(case))
    unpriced = case_of(tmp_path, models={"never-heard-of": {"provider": "scripted"}})
    assert "models.never-heard-of.price: is missing" in said(configuration.prices(unpriced))
    uncounted = case_of(tmp_path, models={"m": {"provider": "scripted", "tokenizer": "nowhere.json"}})
    assert "models.m.tokenizer: " in said(configuration.tokenizers(uncounted))
    assert "tokenizers" in [check.name for check in checks(uncounted)]


@pytest.mark.parametrize(
    ("base_url", "usual"),
    [
        ("https://api.openai.com", "https://api.openai.com/v1"),
        ("https://gateway.test/", "https://gateway.test/v1"),
        ("https://api.openai.com/v1", None),
        ("https://gateway.test/of-its-own", None),
    ],
)
def test_a_base_url_without_a_path_is_doubtful(tmp_path: Path, base_url: str, usual: str | None) -> None:
    words = said(configuration.settings_valid(case_of(tmp_path, providers={"scripted": provider_section(base_url)})))
    assert ("base_url: has no path" in words) == (usual is not None)
    assert usual is None or f"the usual one is {usual}" in words


def test_who_reaches_what_is_not_for_clients(tmp_path: Path) -> None:
    """Nothing to say where it is off, or on this machine alone."""
    everywhere = {"host": "0.0.0.0"}
    alone = case_of(tmp_path, admin={"secret": "${ADMIN}"}, listen={"host": "127.0.0.2"}, worker=everywhere)
    assert marks(configuration.settings_valid(alone)) == {"configuration": "ok"}
    off = said(configuration.settings_valid(case_of(tmp_path, admin=everywhere)))
    assert "admin" not in off
    shared = {"queue": "redis://127.0.0.1:1", "ledger": "postgresql://p", "key_pepper": "${PEPPER}"}
    queued = said(configuration.settings_valid(case_of(tmp_path, worker=everywhere, **shared)))
    assert "/metrics at worker.host 0.0.0.0 " in queued
    assert "listen.host" not in queued


def test_a_folder_that_others_can_read_a_short_pepper_and_a_small_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(tmp_path, exchanges_max=1_000_000)
    case.settings.data_dir.mkdir(mode=0o755)
    (case.settings.data_dir / "pepper").write_bytes(b"short")
    monkeypatch.setattr(
        machine.shutil, "disk_usage", lambda _: machine.shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 20)
    )
    words = said(machine.data_folder(case))
    assert [word for word in ("mode 755", "5 bytes, must have", "1 MiB are free") if word not in words] == []
    assert marks(machine.open_files(case)) == {"open files": "warning"}, resource.getrlimit(resource.RLIMIT_NOFILE)


def test_a_pepper_that_is_not_the_one_of_the_data_folder(tmp_path: Path) -> None:
    """As after a move to Postgres, if `key_pepper` was generated instead of printed: no key would be accepted."""
    shared = {"ledger": "postgresql://p", "key_pepper": "${PEPPER}"}
    case = case_of(tmp_path, **shared)
    assert case.settings.key_pepper is not None
    case.settings.data_dir.mkdir(mode=0o700)
    pepper = case.settings.data_dir / "pepper"
    pepper.write_bytes(bytes.fromhex(case.settings.key_pepper.reveal()))
    assert "pepper" not in said(machine.data_folder(case))
    pepper.write_bytes(b"x" * 32)
    assert f"key_pepper is not the secret in {pepper}: earlier keys are refused" in said(machine.data_folder(case))


def test_where_a_folder_is(tmp_path: Path) -> None:
    """The longest mount point above it, and the last one that was put there."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        "2 1 0:1 / /srv/data rw shared:1 - xfs /dev/b rw\n"
        "3 1 0:2 / /srv/data rw shared:1 - nfs4 host:/x rw\n"
        "4 1 0:3 / /srv/with\\040space rw - tmpfs none rw\n"
    )
    kinds = {"/srv/data/x": "nfs4", "/srv/database": "ext4", "/srv/with space/y": "tmpfs"}
    assert {place: machine.file_system(Path(place), mounts) for place in kinds} == kinds
    assert machine.file_system(tmp_path, tmp_path / "absent") is None


def test_journals_are_read_while_they_are_written(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    place = case.settings.data_dir / "journal"
    journal = Journal.open(place, bytes_max=1 << 24)
    for number in range(3):
        journal.begin(opened(number))
        journal.finish(record(opened(number)))
    journal.settled([journal.pending(1)[0].seq])
    assert machine.read(place)[::2] == (2, 0)
    assert marks(machine.journal(case)) == {"journal": "ok"}
    journal.close()
    (file,) = place.glob("*.log")
    image = bytearray(file.read_bytes())
    image[len(image) // 2] ^= 1
    file.write_bytes(image)
    found = machine.journal(case)
    assert "1 gaps" in said(found)
    assert marks(found) == {"journal": "error"}
    assert file.read_bytes() == image, "it is looked at, not mended"


@pytest.mark.parametrize(
    ("status", "ahead_s", "mark", "words"),
    [
        (200, 0, "ok", ""),
        (404, 0, "error", "is not the address of its API: 404 for its list of models → set base_url to the URL up to"),
        (401, 0, "error", "rejects the key"),
        (503, 0, "warning", "returns 503"),
        (200, 5, "warning", "clocks differ"),
        (200, -3600, "error", "clocks differ"),
    ],
)
def test_what_a_provider_says(
    tmp_path: Path, upstream: Upstream, status: int, ahead_s: float, mark: str, words: str
) -> None:
    upstream.status, upstream.ahead_s = status, ahead_s
    found = providers.check("scripted", case_of(tmp_path, upstream.base_url))
    assert marks(found) == {"provider scripted": mark}
    assert words in said(found)


ROWS, PAGE, INVALID = (200, b'{"data":[]}'), (200, b"<!doctype html>"), (400, b'{"error":{}}')
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("dialects", "paths", "typed", "right"),
    [
        (["openai"], {"GET /v1/models": ROWS}, "", "/v1"),
        slow(["openai"], {"GET /v1/models": ROWS, "GET /models": PAGE}, "", "/v1"),
        (["openai"], {"GET /v1/models": ROWS, "GET /models": (308, b"")}, "", "/v1"),
        slow(["openai"], {"GET /v1/models": (401, b"{}")}, "/v1/v1", "/v1"),
        slow(["openai"], {"POST /v1/chat/completions": INVALID}, "", "/v1"),
        (["openai"], {"GET /v1/models": ROWS}, "/api", "/v1"),
        slow(["openai"], {"GET /inference/v1/models": ROWS}, "/inference", "/inference/v1"),
        slow(["openai.embeddings"], {"POST /v1/embeddings": INVALID}, "", "/v1"),
        slow(["openai.responses"], {"POST /v1/responses": INVALID}, "", "/v1"),
        slow(["anthropic"], {"GET /v1/models": ROWS}, "", "/v1"),
        slow(["anthropic"], {"GET /v1/models": ROWS}, "/v1/v1", "/v1"),
        (["azure"], {"GET /openai/v1/models": ROWS}, "", "/openai"),
        slow(["azure"], {"GET /openai/v1/models": ROWS}, "/openai/v1", "/openai"),
        (["mistral"], {"GET /v1/models": ROWS}, "", "/v1"),
        slow(["cohere"], {"GET /v1/models": ROWS, "POST /v2/chat": INVALID}, "", "/v2"),
        (["cohere"], {"GET /v1/models": ROWS, "POST /v2/chat": INVALID}, "/v1", "/v2"),
        slow(["ollama"], {"GET /api/tags": ROWS, "GET /": PAGE}, "", "/api"),
        (["ollama"], {"GET /api/tags": ROWS, "GET /v1/models": ROWS}, "/v1", "/api"),
        slow(["gemini"], {"GET /v1beta/models": ROWS}, "", "/v1beta"),
        slow(["bedrock"], {"POST /model/tokenweir.doctor/converse": (404, b"ResourceNotFoundException")}, "/v1", ""),
        (["openai"], {}, "", None),
        slow(["gemini"], {}, "/v1beta", None),
    ],
)
def test_a_base_url_that_is_not_the_api_s_is_an_error_that_names_the_right_one(
    tmp_path: Path,
    upstream: Upstream,
    dialects: list[str],
    paths: dict[str, tuple[int, bytes]],
    typed: str,
    right: str | None,
) -> None:
    host = upstream.base_url.removesuffix("/v1")
    upstream.paths = paths

    def looked_at(path: str) -> list[Finding]:
        section = provider_section(host + path, dialects=dialects)
        return providers.check("scripted", case_of(tmp_path, providers={"scripted": section}))

    found = looked_at(typed)
    assert marks(found) == {"provider scripted": "error"}
    assert f"base_url {host}{typed} is not the address of its API" in said(found)
    advice = "the URL up to `/chat/completions`" if right is None else f"{host}{right}, which answers"
    assert f"set base_url to {advice}" in said(found)
    assert SECRET not in repr(found)
    if right is not None and (401, b"{}") not in paths.values():
        assert marks(looked_at(right)) == {"provider scripted": "ok"}


def test_a_provider_without_a_list_of_models_is_asked_at_an_endpoint(tmp_path: Path, upstream: Upstream) -> None:
    upstream.paths = {"POST /v1/chat/completions": (422, b"{}")}
    (found, *_) = providers.check("scripted", case_of(tmp_path, upstream.base_url))
    message = "it is reachable (404 for its list of models, 422 for /chat/completions)"
    assert (found.severity, found.message) == (Severity.OK, message)
    upstream.paths = {"POST /v1/chat/completions": (401, b"{}")}
    case = case_of(tmp_path, upstream.base_url)
    assert "rejects the key" in said(providers.check("scripted", case))
    keyless = replace(case.settings.providers["scripted"], api_key=None, byok=True)
    found = providers.check("scripted", replace(case, settings=replace(case.settings, providers={"scripted": keyless})))
    assert (marks(found), "clients send their own" in found[0].message) == ({"provider scripted": "ok"}, True)


@pytest.mark.parametrize(
    ("status", "kind", "mark", "words"),
    [
        (400, "ValidationException", "ok", ""),
        (404, "ResourceNotFoundException", "ok", ""),
        (403, "AccessDeniedException", "ok", ""),  # it knows who asks, and allows some models only
        (403, "InvalidSignatureException", "error", "check these credentials"),
        (403, "UnrecognizedClientException", "error", "rejects the key of its cloud"),
    ],
)
def test_what_bedrock_says_of_a_signature(
    tmp_path: Path, upstream: Upstream, status: int, kind: str, mark: str, words: str
) -> None:
    """Asked for what costs nothing."""
    upstream.status, upstream.kind = status, kind
    keys = {"region": "eu-west-1", "access_key_id": "${TEST_PROVIDER_KEY}", "secret_access_key": "${PEPPER}"}
    section = {"base_url": upstream.base_url, "dialects": ["bedrock"], "auth": {"aws": keys}}
    found = providers.check("scripted", case_of(tmp_path, providers={"scripted": section}))
    assert marks(found) == {"provider scripted": mark}
    assert words in said(found)
    assert upstream.asked == ["POST /v1/model/tokenweir.doctor/converse"]
    assert upstream.keys[0].startswith("AWS4-HMAC-SHA256 Credential=")


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        (
            {"aws": {"region": "eu-west-1", "profile": "nobody"}},
            "no credentials: ProfileNotFound → check that `aws sts",
        ),
        ({"google": {}}, "no credentials: DefaultCredentialsError → check that `gcloud auth"),
        ({"google": {"credentials_file": "nowhere.json"}}, "cannot be read: No such file or directory"),
    ],
)
def test_a_cloud_without_credentials(
    tmp_path: Path, upstream: Upstream, auth: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    section = {"base_url": upstream.base_url, "auth": auth}
    found = providers.check("scripted", case_of(tmp_path, providers={"scripted": section}))
    assert marks(found) == {"provider scripted": "error"}
    assert words in said(found)
    assert upstream.asked == []


@pytest.mark.parametrize(
    ("path", "marked"),
    [("/v1/projects/p/locations/global", "ok"), ("/v1beta1/projects/p/locations/l", "ok"), ("/v1", "warning")],
)
def test_a_base_url_of_vertex_names_a_project(tmp_path: Path, upstream: Upstream, path: str, marked: str) -> None:
    base_url = upstream.base_url.replace("/v1", path)
    section = provider_section(base_url, dialects=["vertex"])
    found = providers.check("scripted", case_of(tmp_path, providers={"scripted": section}))
    assert marks(found) == {"provider scripted": marked}
    assert ("names no project" in said(found)) == (marked == "warning")


def test_a_provider_that_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections, and speaks no TLS
        threading.Thread(target=lambda: mute.accept()[0].close(), daemon=True).start()
        addresses = {
            f"http://127.0.0.1:{closed_port()}/v1": "Connection refused",
            "https://no-such-host.invalid/v1": "no-such-host.invalid has no address",
            f"https://127.0.0.1:{mute.getsockname()[1]}/v1": "127.0.0.1",
        }
        for base_url, words in addresses.items():
            found = providers.check("scripted", case_of(tmp_path, base_url))
            assert words in said(found)
            assert marks(found) == {"provider scripted": "error"}


def test_one_token_is_bought_only_where_a_model_is_named(tmp_path: Path, provider: ScriptedProvider) -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
    provider.script("m", json_instead({"usage": usage}))
    provider.script("mute", json_instead({}))
    provider.script("no", json_instead({"error": {"code": "bad_model", "message": SECRET}}, 400))
    models = {name: {"provider": "scripted", "price": PRICE} for name in ("m", "mute", "no")}

    def calling(model: str | None) -> list[Finding]:
        case = case_of(tmp_path, provider.base_url, model, models=models)
        return looked(case, f"call {model}")

    assert calling(None) == []
    assert provider.log() == []
    assert calling("m") == [ok("call m", "it answered: 8 prompt and 1 completion tokens")]
    assert provider.log("m")[0]["body"]["max_tokens"] == 1
    assert marks(calling("mute")) == {"call mute": "warning"}
    refused = calling("no")
    assert "returns 400 (bad_model)" in said(refused)
    assert [sorted(one["body"])[0] for one in provider.log("no")] == ["max_tokens", "max_completion_tokens"]
    assert SECRET not in said(refused)
    assert "use one of: m, mute, no" in said(calling("absent"))


def test_a_key_goes_where_the_provider_wants_it(tmp_path: Path, provider: ScriptedProvider) -> None:
    provider.script("m", json_instead({"usage": {"prompt_tokens": 8, "completion_tokens": 1}}))
    models = {"m": {"provider": "scripted", "price": PRICE}}

    def marked(**more: Any) -> dict[str, str]:
        section = provider_section(provider.base_url, **more)
        case = case_of(tmp_path, models=models, providers={"scripted": section}, call="m")
        return marks(looked(case, "call m"))

    for more, header in (({"dialects": ["gemini", "openai"]}, "authorization"), ({"key_header": "api-key"}, "api-key")):
        assert marked(**more) == {"call m": "ok"}
        assert SECRET in {name.lower(): value for name, value in provider.log("m")[-1]["headers"]}[header]
    assert marked(dialects=["anthropic"]) == {"call m": "warning"}


@pytest.mark.thorough
def test_several_machines(tmp_path: Path, postgres: Server, valkey: Valkey) -> None:
    """An empty database; then one of this version, with a month missing, a letter, and a Redis that throws away."""
    name = postgres.new_database()
    urls = {"ledger": "${ledger}", "queue": "${queue}"}
    env = {"TEST_PROVIDER_KEY": SECRET, "PEPPER": PEPPER, "ledger": postgres.url(name), "queue": valkey.url}
    raw = {"providers": {"p": {"base_url": "http://127.0.0.1:1/v1"}}, "models": {"*": {"provider": "p"}}}
    settings = parse(yaml.safe_dump({**raw, **urls, "key_pepper": "${PEPPER}"}), env=env, folder=tmp_path)
    case = CheckedDeployment(settings, time.time())
    assert "empty or not of this version → run `tokenweir migrate`" in said(looked(case, "ledger"))
    migrate(postgres.url(name))
    store = LedgerStores.open(settings)
    try:
        with writing(store.engine) as connection:
            month = partition_name(datetime.fromtimestamp(case.now, UTC))
            connection.exec_driver_sql(f"DROP TABLE {month}")
        found = looked(case, "ledger", "queue")
        words = said(found)
        assert [
            word for word in ("fsync off", "no partitions for", "none is usable", "append-only") if word not in words
        ] == []
        assert marks(found) == {"ledger": "error", "keys": "warning", "queue": "warning"}
        valkey.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        assert "maxmemory-policy allkeys-lru" in said(looked(case, "queue"))
        valkey.kill()
        assert marks(looked(case, "queue")) == {"queue": "error"}
    finally:
        store.close()
        postgres.drop_database(name)
    gone = looked(case, "ledger")
    assert marks(gone) == {"ledger": "error"}
    assert PEPPER not in said(gone)


def test_the_identity_provider_of_the_console(tmp_path: Path) -> None:
    provider = IdentityProvider()
    oidc = {"issuer": provider.url, "client_id": "x", "client_secret": "x", "role_claim": "x", "roles": {"x": "read"}}
    admin = {"public_url": "https://console.example", "oidc": oidc}
    case = case_of(tmp_path, admin=admin, allow_literal_secrets=True)
    (good,) = looked(case, "identity provider")
    provider.close()
    (bad,) = looked(case, "identity provider")
    assert (good.severity, good.message) == ("ok", f"{provider.url}: has its configuration and keys")
    assert (bad.severity, provider.url in bad.message, "cannot be reached" in bad.message) == ("warning", True, True)
    assert looked(case_of(tmp_path), "identity provider") == []


def test_limits_that_name_what_is_not_configured(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    store = LedgerStores.open(case.settings)
    named: dict[str, dict[str, Any]] = {
        "good": {"fallback_model": "m", "providers": ("scripted",)},
        "bad": {"fallback_model": "mm", "providers": ("scripted", "gone")},
    }
    for name, fields in named.items():
        store.rules.create(rule_id=f"rule_{name}", name=name, models=("a",), limits=Limits(rpm=1), **fields)
    store.close()
    found = [one.message for one in looked(case, "ledger") if one.check == "limits"]
    assert found == [
        "the configuration has no provider 'gone'; the limit 'bad' counts nothing there",
        "the configuration has no model 'mm', the fallback model of the limit 'bad'",
    ]


def test_the_issuers_of_clients_tokens(tmp_path: Path) -> None:
    provider = IdentityProvider()
    staff = {"issuer": provider.url, "audience": "x", "claims": {"project": "groups"}}
    staff["projects"] = {"a": "default", "b": "proj_default", "c": "gone"}
    case = case_of(
        tmp_path, identities={"staff": staff, "two": {**staff, "audience": "y", "projects": {"a": "default"}}}
    )
    LedgerStores.open(case.settings).close()
    found = looked(case, "identity staff", "ledger")
    provider.close()
    (bad,) = looked(case, "identity two")
    assert [one.message for one in found if one.check == "identity staff"] == [
        "project: no project has the id or the name 'gone'; its tokens are refused", f"{provider.url}: has its keys"
    ]  # fmt: skip
    assert "keys" not in marks(found), "clients need none"
    assert (bad.severity, "cannot be reached" in bad.message, "get 503" in bad.advice) == ("warning", True, True)

    entra = {"issuer": "https://login.microsoftonline.com/common/v2.0", "audience": "x", "project": "default"}
    noted = said(
        configuration.settings_valid(case_of(tmp_path, identities={"e": {**entra, "key": {"models": ["m", "gone"]}}}))
    )
    assert "identities.e.issuer: no token has this `iss`" in noted
    assert "identities.e.key.models: gone is not under models" in noted
    unread = case_of(tmp_path, identities={"e": {**entra, "tls": {"ca_file": "gone.pem"}}})
    assert marks(configuration.settings_valid(unread)) == {"configuration": "error"}
    assert "identities.e.tls.ca_file" in said(configuration.settings_valid(unread))


def test_a_check_that_hangs_or_breaks_hides_no_other(tmp_path: Path) -> None:
    never = threading.Event()

    def hangs(_: CheckedDeployment) -> list[Finding]:
        never.wait()
        return []

    def breaks(_: CheckedDeployment) -> list[Finding]:
        raise RuntimeError(SECRET)

    listed = [Check("hangs", hangs, 0.05), Check("breaks", breaks), Check("well", lambda _: [ok("well", "it is")])]
    found = examine(case_of(tmp_path), listed)
    never.set()
    assert marks(found) == {"hangs": "error", "breaks": "error", "well": "ok"}
    assert "no answer within 0.05 s" in said(found)
    assert SECRET not in said(found)


def test_a_slow_answer_is_no_difference_between_clocks() -> None:
    assert clock_finding("c", "theirs", 101.0, 100.0, 109.0).severity == Severity.OK
    assert clock_finding("c", "theirs", 98.0, 100.0, 109.0).severity == Severity.WARNING
    assert clock_finding("c", "theirs", 98.0, 100.0, 109.0, resolution_s=1.5).severity == Severity.OK
    assert clock_finding("c", "theirs", 150.0, 100.0, 109.0).severity == Severity.ERROR
