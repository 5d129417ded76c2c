"""A whole deployment whose clients send tokens: from the header to the entry, by commands, and by reload."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.script import Script, Send
from proxy.ledger.dimensions.values import DimensionValues
from proxy.storage.database import open_engine
from tests.crash.reloading import changed, reloaded
from tests.support.identity_provider import IdentityProvider, ec_key, unsigned
from tests.support.net import ask, post_chat
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section
from tests.support.waiting import until

pytestmark = [pytest.mark.io, pytest.mark.process]

AUDIENCE = "https://llm.example"
KEY_ID = "identity_staff_proj_default"
ANSWER = Script(steps=(Send(json.dumps({"object": "chat.completion", "model": "m", "choices": []}).encode()),))
CLAIMS: dict[str, Any] = {
    "project": "group", "end_user": "email", "run": "pipeline", "tags": {"team": "team.name"}
}  # fmt: skip


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    made = ScriptedProvider()
    yield made
    made.close()


@pytest.fixture(scope="module")
def issuer() -> Iterator[IdentityProvider]:
    made = IdentityProvider()
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, provider: ScriptedProvider, issuer: IdentityProvider
) -> Iterator[Tokenweir]:
    staff = {"issuer": issuer.url, "audience": AUDIENCE, "claims": CLAIMS, "projects": {"devs": "default"}}
    made = Tokenweir(
        tmp_path_factory.mktemp("identities"),
        providers={"scripted": provider_section(provider.base_url)},
        identities={"staff": staff},
    )
    made.start()
    yield made
    made.close()


def token(issuer: IdentityProvider, **more: Any) -> str:
    now = int(time.time())
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "user-1", "iat": now, "exp": now + 300, "group": ["devs"]}
    person = {"email": "ann@example.com", "email_verified": True, "pipeline": 42, "team": {"name": "red"}}
    return ec_key().signed({**claims, **person, **more})


def got(running: Tokenweir, path: str, **headers: str) -> tuple[int, Any]:
    with closing(HTTPConnection(running.url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


async def test_from_the_token_to_the_entry(
    running: Tokenweir, provider: ScriptedProvider, issuer: IdentityProvider
) -> None:
    model, sent = provider.script("whole", ANSWER), token(issuer)
    claimed = {"x-tokenweir-end-user": "the boss", "x-tokenweir-run": "7", "x-tokenweir-tags": "team=blue,stage=test"}
    response = await post_chat(running.url, ask(model, stream=False), key=sent, headers=claimed)
    assert response.status == 200, response.body
    [entry] = await asyncio.to_thread(running.entries_of, model)
    assert (entry["key_id"], entry["key_alias"]) == (KEY_ID, "staff@default")
    ids: dict[str, str] = entry["details"]["dimensions"]
    engine = open_engine(running.ledger_url)
    names = DimensionValues(engine).names(list(ids.values()))
    engine.dispose()
    assert {name: names[value_id] for name, value_id in ids.items()} == {
        "end_user": "ann@example.com", "run": "42", "tag:team": "red", "tag:stage": "test",
    }, "what the token says stands, whatever the client says"  # fmt: skip
    for seen in provider.log(model):
        assert sent not in str(seen)
    written = running.outputs()
    for part in sent.split("."):
        assert part.encode() not in written
    for file in running.folder.rglob("*"):
        if file.is_file() and not file.name.startswith("ledger.db"):
            assert b"ann@example.com" not in file.read_bytes(), file


async def test_each_header_of_a_dialect_has_it_and_a_url_has_not(
    running: Tokenweir, provider: ScriptedProvider, issuer: IdentityProvider
) -> None:
    sent, key = token(issuer), running.key("other")
    for headers in (
        {"Authorization": f"Bearer {sent}"}, {"Authorization": f"bearer  {sent}"}, {"Authorization": sent},
        {"x-api-key": sent}, {"x-goog-api-key": sent}, {"api-key": sent},
        {"Authorization": f"Bearer {sent}", "x-api-key": sent},
        {"Sec-WebSocket-Protocol": f"realtime, openai-insecure-api-key.{sent}"},
    ):  # fmt: skip
        status, shown = got(running, "/v1/me", **headers)
        assert (status, shown.get("id")) == (200, KEY_ID), headers
    for both in (
        {"Authorization": f"Bearer {sent}", "x-api-key": key}, {"Authorization": f"Bearer {key}", "x-api-key": sent}
    ):  # fmt: skip
        assert got(running, "/v1/me", **both)[1]["id"] != KEY_ID, "a key wins"
    for path in (f"/v1/me?key={sent}", f"/v1/me?access_token={sent}", f"/v1/me?token={sent}"):
        assert got(running, path)[0] == 401
    assert got(running, "/v1/me", Cookie=f"key={sent}")[0] == 401


async def test_a_refusal_has_the_shape_of_its_sdk(running: Tokenweir, issuer: IdentityProvider) -> None:
    wrong = unsigned({"alg": "none"}, {"iss": issuer.url, "aud": AUDIENCE})
    model = ask("m", stream=False)
    refused = await post_chat(running.url, model, key=token(issuer, exp=int(time.time()) - 90))
    assert refused.status == 401
    assert json.loads(refused.body)["error"]["code"] == "expired_token"
    refused = await post_chat(running.url, model, key=token(issuer, group="others"))
    assert json.loads(refused.body)["error"]["code"] == "token_not_allowed"
    refused = await post_chat(
        running.url, {**model, "max_tokens": 9}, path="/v1/messages", headers={"x-api-key": wrong}
    )
    assert refused.status == 401
    assert json.loads(refused.body) == {
        "type": "error",
        "error": {
            "type": "authentication_error",
            "message": "The token is not valid: its format, its signature or its times are wrong.",
        },
    }
    assert wrong.encode() not in running.outputs()


@pytest.mark.thorough
async def test_it_is_listed_limited_and_blocked_as_any_key(
    running: Tokenweir, provider: ScriptedProvider, issuer: IdentityProvider
) -> None:
    model = provider.script("limited", ANSWER)

    async def status() -> int:
        return (await post_chat(running.url, ask(model, stream=False), key=token(issuer))).status

    assert await status() == 200
    listed = [json.loads(line) for line in running.said("keys", "list", "--json").splitlines()]
    [shown] = [one for one in listed if one["key_id"] == KEY_ID]
    assert (shown["hint"], shown["expires_at"], shown["project_id"]) == ("token of staff", None, "proj_default")
    code, printed = running.found("keys", "rotate", KEY_ID)
    assert code != 0
    assert "has no secret: its clients send tokens of an issuer" in printed

    async def becomes(expected: int) -> None:
        async def holds() -> bool:
            return await status() == expected

        await until(holds)

    running.change("keys", "update", "staff@default", "--budget", "0")
    await becomes(402)
    running.change("keys", "update", "staff@default", "--budget", "none")
    await becomes(200)
    running.change("keys", "block", KEY_ID)
    await becomes(401)
    running.change("keys", "unblock", KEY_ID)
    await becomes(200)


async def test_a_limit_of_one_person_holds_whatever_the_client_says(
    running: Tokenweir, provider: ScriptedProvider, issuer: IdentityProvider
) -> None:
    model = provider.script("of-one", ANSWER)

    async def status(person: str) -> int:
        sent, claimed = token(issuer, email=person), {"x-tokenweir-end-user": "somebody"}
        return (await post_chat(running.url, ask(model, stream=False), key=sent, headers=claimed)).status

    rule = ("--project", "default", "--only", "end_user=eve@example.com", "--budget", "0")
    running.change("limits", "create", "of-eve", *rule)

    async def holds() -> bool:
        return await status("eve@example.com") == 402

    await until(holds)
    assert await status("ann@example.com") == 200


async def test_after_a_reload_without_it_its_tokens_are_texts(running: Tokenweir, issuer: IdentityProvider) -> None:
    sent, removed = token(issuer), dict[str, Any]()
    assert got(running, "/v1/me", Authorization=f"Bearer {sent}")[0] == 200
    changed(running, lambda document: removed.update(document.pop("identities")))
    assert (await reloaded(running))["error"] is None
    status, answer = got(running, "/v1/me", Authorization=f"Bearer {sent}")
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    changed(running, lambda document: document.update(identities=removed))
    assert (await reloaded(running))["need_restart"] == []
    await until(lambda: got(running, "/v1/me", Authorization=f"Bearer {sent}")[0] == 200)


@pytest.mark.thorough
def test_a_certificate_s_file_that_is_wrong_is_found_by_check(running: Tokenweir, tmp_path: Path) -> None:
    def change(document: Any) -> None:
        document["identities"]["staff"] |= {"issuer": "https://sso.example", "tls": {"ca_file": "missing.pem"}}

    kept = running.config.read_text()
    try:
        changed(running, change)
        code, printed = running.found("doctor")
        assert code != 0
        assert "identities.staff.tls.ca_file" in printed
    finally:
        running.config.write_text(kept)
