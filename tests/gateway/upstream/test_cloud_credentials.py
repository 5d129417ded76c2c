"""Credentials of clouds: requests are signed or carry tokens, fetched by one for all, renewed in time, never shown."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from proxy.foundation.secret import Secret
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.cloud import fetched
from proxy.gateway.upstream.cloud.aws import AwsAuthorization
from proxy.gateway.upstream.cloud.fetched import CredentialFailedError, Fetched, Lasting
from proxy.gateway.upstream.provider import Provider
from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE
from proxy.settings import ProviderSettings, SettingsError
from proxy.settings.cloud_auth import AuthSettings, AwsAuthSettings, GoogleAuthSettings
from tests.support.http_server import answering
from tests.support.net import listening
from tests.support.sigv4 import verified

# Of AWS's own test suite for signatures, and its results.
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
VECTORS = {
    ("GET", "/", ""): "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ("POST", "/", ""): "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ("GET", "/?Param2=value2&Param1=value1", ""): "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ("GET", "/?%E1%88%B4=bar", ""): "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
}


@pytest.mark.parametrize("asked", VECTORS)
def test_the_verifier_agrees_with_aws_s_published_signatures(asked: tuple[str, str, str]) -> None:
    method, target, body = asked
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={KEY}/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={VECTORS[asked]}"
    )
    request = (
        f"{method} {target} HTTP/1.1\r\nHost:example.amazonaws.com\r\nX-Amz-Date:20150830T123600Z\r\n"
        f"Authorization: {authorization}\r\n\r\n{body}"
    ).encode()
    assert verified(request, {KEY: SECRET}, region="us-east-1", service="service") == KEY
    for wrong in (request + b"x", request.replace(b"123600", b"123601"), request.replace(b"example.", b"evil.")):
        with pytest.raises(AssertionError):
            verified(wrong, {KEY: SECRET}, region="us-east-1", service="service")


# -- a provider that keeps what arrived --------------------------------------------------------------------------


@asynccontextmanager
async def keeping(seen: list[bytes]) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Content-Length" in line), 0)
        seen.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    async with listening(serve, limit=1 << 22) as url:
        yield url


def provider(url: str, auth: AuthSettings) -> Provider:
    return Provider.of(ProviderSettings(name="cloud", base_url=url, auth=auth), write_stall_s=60)


def aws(**settings: Any) -> AuthSettings:
    return AuthSettings(aws=AwsAuthSettings(region="eu-west-1", **settings))


KEYS = {"access_key_id": Secret(KEY), "secret_access_key": Secret(SECRET)}


async def asked(provider: Provider, *request: bytes) -> None:
    client = UpstreamClient()
    try:
        answer = await client.ask(provider, *request)
        assert await answer.read(100) == b"{}"
    finally:
        await client.close()


@pytest.mark.parametrize("body", [b"{}", "größer".encode(), b"x" * (3 << 20)], ids=["small", "text", "long"])
@pytest.mark.parametrize(
    "path", ["/model/us.amazon.nova-lite-v1%3A0/converse", "/model/arn%3Aaws%2Fx/invoke", "/a?b=c&a=%2F"]
)
@pytest.mark.io
async def test_what_arrives_has_a_signature_of_its_target_and_its_body(path: str, body: bytes) -> None:
    seen: list[bytes] = []
    async with keeping(seen) as url:
        one = provider(url, aws(**KEYS))
        pieces = [body[at : at + (1 << 20)] for at in range(0, len(body), 1 << 20)]
        await asked(one, *one.request(BEDROCK_CONVERSE, path, pieces, "Content-Type: application/json\r\n"))
    (request,) = seen
    assert verified(request, {KEY: SECRET}, region="eu-west-1", service="bedrock") == KEY
    assert request.startswith(f"POST {path} HTTP/1.1\r\n".encode())
    assert request.endswith(body)
    assert b"ecurity-Token" not in request
    assert SECRET.encode() not in request


@pytest.mark.io
async def test_every_request_is_signed_with_a_session_token_too_and_without_a_body() -> None:
    seen: list[bytes] = []
    async with keeping(seen) as url:
        one = provider(url, aws(**KEYS, session_token=Secret("of-a-session"), service="other"))
        await asked(one, one.get("/models", KeyHeader.AUTHORIZATION))
    assert b"X-Amz-Security-Token: of-a-session\r\n" in seen[0]
    assert b"x-amz-security-token" in seen[0], "it is signed"
    assert verified(seen[0], {KEY: SECRET}, region="eu-west-1", service="other") == KEY


# -- where AWS's tools find credentials --------------------------------------------------------------------------


@pytest.fixture
def nothing_of_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any credentials: the folder where its files would be."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


def signer(**settings: Any) -> AwsAuthorization:
    return AwsAuthorization(AwsAuthSettings(**settings), "eu-west-1", "https://b.test", "cloud")


REQUEST = b"POST /model/m/converse HTTP/1.1\r\nHost: b.test\r\nContent-Length: 2\r\n\r\n{}"


async def signed_by(one: AwsAuthorization, secrets: dict[str, str]) -> str:
    return verified(await one.authorized(REQUEST), secrets, region="eu-west-1", service="bedrock")


async def test_variables_and_profiles_are_found(nothing_of_aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = "[team]\naws_access_key_id = AKIDTEAM\naws_secret_access_key = of-the-team\n"
    (nothing_of_aws / "credentials").write_text(profile)
    assert await signed_by(signer(profile="team"), {"AKIDTEAM": "of-the-team"}) == "AKIDTEAM"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-variables")
    assert await signed_by(signer(), {"AKIDENV": "of-variables"}) == "AKIDENV"


@pytest.mark.parametrize("settings", [{}, {"profile": "nobody"}])
async def test_without_credentials_nothing_is_sent(
    nothing_of_aws: Path, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    one = signer(**settings)
    for _ in range(2):
        with pytest.raises(CredentialFailedError, match="no credentials") as failure:
            await one.authorized(REQUEST)
    refusal = failure.value.refusal()
    assert (refusal.status, refusal.code) == (502, "upstream_auth")
    assert len(caplog.records) == 1, "told once"


@pytest.mark.io
async def test_temporary_credentials_are_renewed_in_time(nothing_of_aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container gets them; botocore renews what ends within fifteen minutes."""
    given = 0

    def credentials(*_request: object) -> tuple[int, bytes]:
        nonlocal given
        given += 1
        ends = datetime.now(UTC) + timedelta(minutes=5 if given == 1 else 60)
        named = {"AccessKeyId": f"AKID{given}", "SecretAccessKey": f"secret-{given}", "Token": f"token-{given}"}
        return 200, json.dumps(named | {"Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()

    secrets = {"AKID1": "secret-1", "AKID2": "secret-2"}
    with answering(credentials) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/creds")
        one = signer()
        assert await signed_by(one, secrets) in secrets
        one._credentials._kept = one._credentials._kept._replace(renew_at=0.0, ends_at=0.0)  # type: ignore[union-attr]
        assert await signed_by(one, secrets) == "AKID2"
        assert await signed_by(one, secrets) == "AKID2"
    assert given == 2
    assert one.is_revealed_by(b"... token-2 ...")
    assert one.is_revealed_by(b'{"message":"User: arn:aws:iam::123456789012:user/x is not authorized"}')
    assert one.is_revealed_by(b"arn:aws-cn:sts::123456789012:assumed-role/r/s")
    assert not one.is_revealed_by(b"arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0")


def test_what_botocore_would_log_of_secrets_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    one = signer(**KEYS, session_token=Secret("of-a-session"))
    asyncio.run(one.authorized(REQUEST))
    assert "of-a-session" not in caplog.text
    assert SECRET not in caplog.text


# -- Google ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Tokens:
    """Google's token endpoint: gives a token to whom it knows by the signature."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        self.given = 0
        self.lasts_s = 3600
        self.status = 200

    def __call__(self, _path: str, _headers: object, body: bytes) -> tuple[int, bytes]:
        signed, _, signature = parse_qs(body.decode())["assertion"][0].rpartition(".")
        self._key.public_key().verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(_decoded(signed.partition(".")[2]))
        assert claims["iss"] == "weir@test.iam.gserviceaccount.com"
        assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        if self.status != 200:
            return self.status, b'{"error":"invalid_grant","error_description":"of weir@test"}'
        self.given += 1
        given = {"access_token": f"ya29.token-{self.given}", "expires_in": self.lasts_s, "token_type": "Bearer"}
        return 200, json.dumps(given).encode()


@pytest.fixture
def tokens(rsa_key: rsa.RSAPrivateKey) -> Tokens:
    return Tokens(rsa_key)


@pytest.fixture
def service_account(tokens: Tokens, rsa_key: rsa.RSAPrivateKey, tmp_path: Path) -> Iterator[Path]:
    """A key that was made here, whose tokens come from here."""
    private = rsa_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with answering(tokens) as url:
        file = tmp_path / "key.json"
        file.write_text(json.dumps({
            "type": "service_account", "project_id": "ours", "private_key_id": "1", "private_key": private.decode(),
            "client_email": "weir@test.iam.gserviceaccount.com", "token_uri": f"{url}/token",
        }))  # fmt: skip
        yield file


async def bearer(one: Provider) -> str:
    assert one.authorization is not None
    head = (await one.authorization.authorized(REQUEST)).decode()
    (line,) = [line for line in head.split("\r\n") if line.lower().startswith("authorization:")]
    return line.partition(": ")[2]


def google(file: Path | None) -> Provider:
    return provider("https://v.test/v1", AuthSettings(google=GoogleAuthSettings(credentials_file=file)))


@pytest.mark.io
async def test_a_service_account_gets_one_token_for_all(service_account: Path, tokens: Tokens) -> None:
    one = google(service_account)
    assert set(await asyncio.gather(*(bearer(one) for _ in range(20)))) == {"Bearer ya29.token-1"}
    assert await bearer(one) == "Bearer ya29.token-1"
    assert tokens.given == 1
    assert one.is_revealed_by(b"the token ya29.token-1 is not good")
    assert not one.is_revealed_by(b"no token is good")


@pytest.mark.io
async def test_a_token_is_renewed_before_it_ends_and_used_meanwhile(service_account: Path, tokens: Tokens) -> None:
    tokens.lasts_s = 200  # within the last five minutes from the beginning
    one = google(service_account)
    assert await bearer(one) == "Bearer ya29.token-1"
    tokens.lasts_s = 3600
    assert await bearer(one) == "Bearer ya29.token-1"
    deadline = time.monotonic() + 20
    while await bearer(one) != "Bearer ya29.token-2":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert tokens.given == 2


@pytest.mark.io
async def test_a_refused_key_is_a_502_that_shows_nothing(
    service_account: Path, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    tokens.status = 400
    with pytest.raises(CredentialFailedError) as failure:
        await bearer(google(service_account))
    assert str(failure.value) == "no credentials: RefreshError"
    assert failure.value.refusal().status == 502
    assert "weir@test" not in caplog.text
    assert "they cannot be obtained (RefreshError)" in caplog.text


@pytest.mark.io
async def test_application_default_credentials_are_found(
    service_account: Path, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account))
    assert await bearer(google(None)) == "Bearer ya29.token-1"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read"), ("{", "no Google credentials"), ("[]", "no Google credentials"),
        ('{"type":"service_account"}', "no Google credentials"), ('{"type":"external_account"}', "must be a service"),
        ('{"type":"service_account","private_key":"-----BEGIN x"}', "no Google credentials"),
    ],
)  # fmt: skip
def test_a_file_that_holds_none_is_said_at_the_start(text: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match=why) as refusal:
        google(file)
    assert str(refusal.value).startswith("providers.cloud.auth.google.credentials_file: ")
    assert "BEGIN" not in str(refusal.value)


@pytest.mark.parametrize(
    ("auth", "module", "extra"),
    [(aws(**KEYS), "botocore.auth", "bedrock"), (AuthSettings(google=GoogleAuthSettings()), "google.auth", "vertex")],
)
def test_a_missing_extra_is_named(auth: AuthSettings, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aws", "google"):
        monkeypatch.delitem(sys.modules, f"proxy.gateway.upstream.cloud.{name}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=rf"pip install 'tokenweir\[{extra}\]'"):
        provider("https://x.test", auth)


# -- one fetch for all -------------------------------------------------------------------------------------------


class Source:
    """What is fetched, when the test lets it."""

    def __init__(self) -> None:
        self.calls = 0
        self.now = 1000.0
        self.fails: Exception | None = None
        self.go = threading.Event()
        self.go.set()

    def fetch(self) -> Lasting[int]:
        self.calls += 1
        assert self.go.wait(20)
        if self.fails is not None:
            raise self.fails
        return Lasting(self.calls, self.now + 100, self.now + 200)

    def made(self) -> Fetched[int]:
        return Fetched(self.fetch, "test", unix_time=lambda: self.now)


async def test_who_leaves_does_not_end_the_fetch_for_the_others() -> None:
    source = Source()
    source.go.clear()
    one = source.made()
    leaving, staying = (asyncio.get_running_loop().create_task(one.get()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    source.go.set()
    assert await staying == 1
    assert leaving.cancelled()
    assert source.calls == 1


async def test_it_is_used_while_it_is_renewed_and_never_after_its_end() -> None:
    source = Source()
    one = source.made()
    assert await one.get() == 1
    source.now = 1150
    source.go.clear()
    assert [await one.get() for _ in range(3)] == [1, 1, 1]
    source.now = 1201
    late = asyncio.get_running_loop().create_task(one.get())
    await asyncio.sleep(0)
    assert not late.done()
    source.go.set()
    assert await late == 2
    assert source.calls == 2


async def test_a_failure_is_told_to_all_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    source.fails = ValueError("s3cret")
    one = source.made()
    told = await asyncio.gather(*(one.get() for _ in range(3)), return_exceptions=True)
    assert [str(failure) for failure in told] == ["no credentials: ValueError"] * 3
    with pytest.raises(CredentialFailedError):
        await one.get()
    assert source.calls == 1, "not again at once"
    source.now += fetched.RETRY_S
    source.fails = None
    assert await one.get() == 2
    assert "s3cret" not in caplog.text
    assert [record.getMessage() for record in caplog.records] == [
        "test: they cannot be obtained (ValueError)", "test: works again",
    ]  # fmt: skip


async def test_a_renewal_that_fails_leaves_what_is_still_good() -> None:
    source = Source()
    one = source.made()
    assert await one.get() == 1
    source.now, source.fails = 1150, OSError()
    assert await one.get() == 1
    while one._running is not None:
        await asyncio.sleep(0.001)
    assert await one.get() == 1
    source.now = 1201
    with pytest.raises(CredentialFailedError):
        await one.get()
