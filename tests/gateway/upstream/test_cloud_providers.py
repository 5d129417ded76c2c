"""Providers whose credentials are a cloud's, through a running proxy: what they get, and what clients see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from proxy.demo.script import Script, Send, json_script
from tests.metering.dialects.bedrock import ASKED, STREAM, at, converse
from tests.support.net import Response, chat_request, connect
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import PRICE, Tokenweir

KEY, SECRET, TOKEN = "AKIDCANARY", "canary-of-a-secret-key-4f1", "canary-of-a-session-token-9c2"
KEYS = {"access_key_id": "${AWS_KEY}", "secret_access_key": "${AWS_SECRET}", "session_token": "${AWS_TOKEN}"}
SOON_S = 20.0


@pytest.fixture
def running(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tokenweir]:
    """Asks the provider signed, and another one for which there are no credentials."""
    bedrock = {"base_url": provider.url, "dialects": ["bedrock"]}
    one = tokenweir(
        providers={
            "aws": bedrock | {"auth": {"aws": {"region": "eu-west-1", **KEYS}}},
            "none": bedrock | {"auth": {"aws": {"region": "eu-west-1", "profile": "nobody"}}},
        },
        models={
            "aws/*": {"provider": "aws", "price": PRICE},
            "none/*": {"provider": "none", "price": PRICE},
            "both": {"providers": ["none", "aws"], "price": PRICE},
        },
        start=False,
    )
    one.environment |= {"AWS_KEY": KEY, "AWS_SECRET": SECRET, "AWS_TOKEN": TOKEN, "AWS_EC2_METADATA_DISABLED": "true"}
    yield one.start()
    log = one.log.read_text()
    assert "Traceback" not in log
    assert all(secret not in log for secret in (KEY, SECRET, TOKEN))


async def asked(running: Tokenweir, key: str, model: str) -> Response:
    async with await connect(running.url) as client:
        await client.send(chat_request(ASKED, path=at(model), key=key))
        return await client.read(SOON_S)


REFUSALS = (
    ("UnrecognizedClientException:http://x/", "The security token in the request is invalid.", 502, "credentials"),
    ("InvalidSignatureException", "no", 502, "credentials"),
    ("AccessDeniedException", "Authentication failed: Please make sure your API Key is valid.", 502, "credentials"),
    ("AccessDeniedException", "User: arn:aws:iam::123456789012:user/weir is not authorized", 502, "failed"),
    ("InvalidParameter", f"the canonical request has x-amz-security-token:{TOKEN}", 502, "failed"),
    ("AccessDeniedException", "You don't have access to the model with the specified model ID.", 403, "You don't"),
)  # fmt: skip


@pytest.mark.thorough
async def test_requests_are_signed_and_failures_show_nothing(running: Tokenweir, provider: ScriptedProvider) -> None:
    key = running.key()
    for name in ("tale", "both"):
        provider.script(name, Script(steps=tuple(map(Send, converse())), headers=STREAM))
    answer = await asked(running, key, "aws/tale")
    assert (answer.status, answer.body) == (200, b"".join(converse()))
    (seen,) = provider.log("tale")
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert f"Credential={KEY}/" in headers["authorization"]
    assert "/eu-west-1/bedrock/aws4_request" in headers["authorization"]
    assert headers["x-amz-security-token"] == TOKEN
    assert key not in str(seen)
    for number, (kind, text, status, says) in enumerate(REFUSALS):
        script = json_script({"message": text}, 403)
        named = (*script.headers, ("x-amzn-ErrorType", kind))
        provider.script(f"no-{number}", Script(script.steps, status=403, headers=named, framing="length"))
        refused = await asked(running, key, f"aws/no-{number}")
        assert (refused.status, says in json.loads(refused.body)["message"]) == (status, True), text
        assert TOKEN.encode() not in refused.body
        assert b"123456789012" not in refused.body
    without = await asked(running, key, "none/tale")
    assert (without.status, without.header("x-amzn-errortype")) == (502, "ModelErrorException")
    assert json.loads(without.body) == {"message": "The proxy has no credentials for this provider now."}
    entries = running.entries(2 + len(REFUSALS))
    assert [entry["charge_usd"] == "0" for entry in entries].count(False) == 1
    (failed,) = [entry for entry in entries if entry["model"] == "none/tale"]
    assert (failed["outcome"], failed["details"]["failed"]) == ("upstream_failed", "no credentials: ProfileNotFound")
    assert (await asked(running, key, "both")).status == 200, "another provider is asked"
    attempt, entry = sorted(running.entries_of("both", 2), key=lambda one: str(one["kind"]))
    assert (entry["provider"], entry["outcome"], entry["completion_tokens"]) == ("aws", "served", 17)
    assert (attempt["provider"], attempt["charge_usd"]) == ("none", "0")
    assert attempt["details"]["failed"] == "no credentials: ProfileNotFound"
