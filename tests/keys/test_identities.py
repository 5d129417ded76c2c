"""Clients without a key: an issuer on a real socket, a ledger in SQLite, and what attackers write into tokens."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import Engine

from proxy.billing.dimensions import value_of
from proxy.billing.keys import DEFAULT_PROJECT, ApiKey
from proxy.foundation.outage import OutageLog
from proxy.foundation.tasks import Tasks
from proxy.identity import keys as keys_module
from proxy.identity.tokens import TokenVerifier
from proxy.keys import identities as module
from proxy.keys.access import Refused
from proxy.keys.guesses import GUESSES_MAX
from proxy.keys.identities import Identities
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import digest, hint, new_secret
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.key_store import KeyStore, KeyStoreError
from proxy.settings import parse
from proxy.settings.identities import IdentitySettings
from proxy.storage.database import open_engine
from tests.support.identity_provider import IdentityProvider, SigningKey, ec_key, rsa_key, unsigned
from tests.support.sqlite import empty_ledger
from tests.support.tokenweir import TRUSTING_NOBODY
from tests.support.waiting import until

pytestmark = pytest.mark.io

AUDIENCE = "https://llm.example"
PEPPER = b"p" * 32
SMALL = {
    "providers": {"electron": {"base_url": "https://host.example/v1", "api_key": "${KEY}"}},
    "models": {"*": {"provider": "electron", "price": {"input": 1, "output": 2}}},
}


def read(**identities: dict[str, Any]) -> dict[str, IdentitySettings]:
    """The settings of these identities."""
    document = json.dumps({**SMALL, "identities": identities} if identities else SMALL)
    return dict(parse(document, env={"KEY": "sk-1"}, folder=Path("/etc")).identities)


class Project(NamedTuple):
    project_id: str
    name: str


class Stand:
    """The identities of one process."""

    def __init__(self, engine: Engine, tasks: Tasks, provider: IdentityProvider) -> None:
        self.store, self.accounts = KeyStore(engine, clock=time.time), AccountStore(engine, clock=time.time)
        self.now = time.time
        self.keyring = Keyring(
            self.store, pepper=PEPPER, unix_time=lambda: self.now(), observer=OutageLog("reading keys")
        )
        self.identities = Identities(self.keyring, tasks, unix_time=lambda: self.now())
        self.provider = provider

    def use(self, **identities: dict[str, Any]) -> None:
        self.identities.prepared(read(**identities))()

    def project(self, name: str) -> str:
        return self.accounts.create_project(account_id=f"proj_{name}", name=name, organization="org_default").account_id

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        made = {"iss": self.provider.url, "aud": AUDIENCE, "sub": "user-1", "iat": now, "exp": now + 300, **changed}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, key: SigningKey | None = None, **changed: Any) -> str:
        return (key or ec_key()).signed(self.claims(**changed))

    async def key(self, token: str, address: str | None = None) -> ApiKey | Refused:
        return await self.identities.key(token, address)


@pytest.fixture(scope="module")
def one_provider() -> Iterator[IdentityProvider]:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in TRUSTING_NOBODY.items():
            patched.setenv(name, value)
        yield from _provided()


def _provided() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.close()


@pytest.fixture
def provider(one_provider: IdentityProvider) -> IdentityProvider:
    one_provider.keys, one_provider.configuration = [ec_key(), rsa_key()], {}
    one_provider.broken, one_provider.asked = {}, []
    return one_provider


@asynccontextmanager
async def opened(folder: Path, provider: IdentityProvider, **identities: dict[str, Any]) -> AsyncIterator[Stand]:
    """`identities`: without any, one named `staff` for the default project."""
    ledger = folder / "ledger.db"
    engine, tasks = open_engine(f"sqlite:///{ledger}" if ledger.exists() else empty_ledger(ledger)), Tasks()
    stand = Stand(engine, tasks, provider)
    await stand.keyring.start()
    stand.use(**identities or {"staff": staff(provider)})
    try:
        yield stand
    finally:
        await tasks.stop()
        stand.keyring.close()
        engine.dispose()


def staff(provider: IdentityProvider, **changed: Any) -> dict[str, Any]:
    made = {"issuer": provider.url, "audience": AUDIENCE, "project": "default", **changed}
    return {name: value for name, value in made.items() if value is not None}


@pytest.fixture
async def stand(tmp_path: Path, provider: IdentityProvider) -> AsyncIterator[Stand]:
    async with opened(tmp_path, provider) as made:
        yield made


async def test_the_key_of_an_identity_is_a_row_as_any_other_but_no_secret_has_it(stand: Stand) -> None:
    key = await stand.key(stand.token())
    assert isinstance(key, ApiKey)
    assert (key.key_id, key.alias) == ("identity_staff_proj_default", "staff@default")
    assert (key.project_id, key.expires_at, key.has_secret) == (DEFAULT_PROJECT, None, False)
    assert [one.key_id for one in stand.store.every()] == [key.key_id]
    assert len(key.digest) > 32, "longer than the digest of any secret"
    for secret in (key.key_id, key.hint, key.digest.decode(), f"tw-{key.key_id}"):
        assert stand.keyring.authenticate(secret, time.time()) is Refused.MALFORMED
    secret = new_secret().reveal()
    with pytest.raises(KeyStoreError, match="has no secret"):
        stand.store.rotate(key.key_id, digest=digest(secret, PEPPER), hint=hint(secret), old_until=time.time())

    stand.store.update(key.key_id, models=["small"], rpm=7)
    await stand.keyring.refresh()
    changed = await stand.key(stand.token())
    assert isinstance(changed, ApiKey)
    assert (changed.models, changed.limits.rpm) == ({"small"}, 7)
    stand.store.block(key.key_id)
    await stand.keyring.refresh()
    assert await stand.key(stand.token()) is Refused.BLOCKED
    stand.store.unblock(key.key_id)
    stand.accounts.block(DEFAULT_PROJECT)
    await stand.keyring.refresh()
    assert await stand.key(stand.token()) is Refused.BLOCKED, "by its project"
    stand.accounts.unblock(DEFAULT_PROJECT)
    await stand.keyring.refresh()
    assert isinstance(await stand.key(stand.token()), ApiKey)
    stand.store.revoke(key.key_id)
    await stand.keyring.refresh()
    assert await stand.key(stand.token()) is Refused.REVOKED


async def test_a_revoked_one_stays_revoked_for_a_process_that_does_not_know_it(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    async with opened(tmp_path, provider) as stand:
        key = await stand.key(stand.token())
        assert isinstance(key, ApiKey)
        stand.store.revoke(key.key_id)
    async with opened(tmp_path, provider) as stand:
        assert stand.keyring.known(key.key_id) is None
        assert await stand.key(stand.token()) is Refused.REVOKED


async def test_it_begins_with_the_limits_of_the_settings_and_an_alias_that_is_free(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    begins = {"budget_usd": 25, "budget_window": "calendar_month", "rpm": 60, "models": ["small"]}
    async with opened(tmp_path, provider, ci=staff(provider, key=begins)) as stand:
        stand.store.create(key_id="key_1", alias="ci@default", digest=b"d" * 32, hint="", models=None, expires_at=None)
        key = await stand.key(stand.token())
    assert isinstance(key, ApiKey)
    assert key.alias == key.key_id == "identity_ci_proj_default"
    assert (key.limits.budget_nusd, key.limits.budget_window) == (25_000_000_000, "calendar_month")
    assert (key.limits.rpm, key.models) == (60, {"small"})


async def test_several_machines_agree_on_it(tmp_path: Path, provider: IdentityProvider) -> None:
    async with opened(tmp_path, provider) as one, opened(tmp_path, provider) as other:
        tokens = [one.token(sub=f"user-{number}") for number in range(8)]
        keys = await asyncio.gather(*(stand.key(token) for token in tokens for stand in (one, other)))
        rows = [replace(key, dimensions=None, holder=None, branch_ids=()) for key in keys if isinstance(key, ApiKey)]
        assert rows == rows[:1] * 16, "with the same windows of its limits"
        assert len(list(one.store.every())) == 1


async def test_by_a_claim_to_a_project(tmp_path: Path, provider: IdentityProvider) -> None:
    mapped = staff(
        provider, project=None, claims={"project": "groups"}, projects={"admins": "proj_b", "devs": "a", "old": "gone"}
    )
    named = staff(provider, project=None, claims={"project": "realm.team"}, audience="other")
    async with opened(tmp_path, provider, mapped=mapped, named=named) as stand:
        for name in ("a", "b"):
            stand.project(name)

        async def project(**claims: Any) -> str:
            key = await stand.key(stand.token(**claims))
            return key.project_id if isinstance(key, ApiKey) else str(key)

        assert await project(groups=["devs"]) == "proj_a"
        assert await project(groups=["devs", "admins"]) == "proj_b", "in the order of the settings"
        assert await project(aud="other", realm={"team": "b"}) == "proj_b", "the value is the name"
        assert await project(aud="other", realm={"team": "proj_a"}) == "proj_a", "or the id"
        for refused in (
            {}, {"groups": []}, {"groups": "a"}, {"groups": ["proj_b"]}, {"groups": {"devs": 1}}, {"groups": "devs "},
            {"groups": ["old"]}, {"aud": "other"}, {"aud": "other", "realm": "b"},
            {"aud": "other", "realm": {"team": ["a", "b"]}}, {"aud": "other", "realm": {"team": "org_default"}},
        ):  # fmt: skip
            assert await project(**refused) == Refused.JWT_PROJECT, refused
        assert {one.key_id for one in stand.store.every()} == {
            "identity_mapped_proj_a", "identity_mapped_proj_b", "identity_named_proj_a", "identity_named_proj_b",
        }  # fmt: skip


async def test_the_dimensions_of_a_token_replace_those_of_a_client_and_not_those_of_an_operator(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    claims = {"end_user": "email", "session": "sid", "run": "pipeline", "tags": {"Team": "realm.team", "x": "x"}}
    async with opened(tmp_path, provider, staff=staff(provider, claims=claims)) as stand:

        async def fixed(**claims: Any) -> Any:
            key = await stand.key(stand.token(**claims))
            return key.dimensions and dict(key.dimensions.fixed) if isinstance(key, ApiKey) else key

        ann = {"email": "ann@example.com", "email_verified": True}
        assert await fixed(**ann, pipeline=42, realm={"team": ["red", "blue"]}, x={"y": 1}, sid=" ") == {
            "end_user": "ann@example.com", "run": "42", "tag:team": "red",
        }  # fmt: skip
        assert await fixed(email="x" * 300, email_verified="true") == {"end_user": value_of("x" * 300)}
        for nobody in ({}, {"email": "ann@example.com"}, {**ann, "email_verified": False}, {**ann, "email": "a\nb"}):
            assert await fixed(**nobody) is Refused.JWT_CLAIMS, nobody
        stand.store.update("identity_staff_proj_default", dimensions={"end_user": "staff", "tag:cost": "7"})
        await stand.keyring.refresh()
        assert await fixed(**ann, pipeline=42) == {"end_user": "staff", "run": "42", "tag:cost": "7"}


async def test_each_person_is_a_holder_of_the_common_key(stand: Stand) -> None:
    found = [
        await stand.key(stand.token(sub=person, jti=str(number))) for number, person in enumerate(("ann", "bob", "ann"))
    ]
    ann, bob, again = (one for one in found if isinstance(one, ApiKey))
    assert ann.key_id == bob.key_id
    assert (ann.holder_id, ann.branch_ids) == (again.holder_id, again.branch_ids) == (ann.holder, (ann.holder,))
    assert len({ann.key_id, ann.holder_id, bob.holder_id}) == 3
    assert "ann" not in ann.holder_id


async def test_claims_that_are_required(tmp_path: Path, provider: IdentityProvider) -> None:
    required = {"repository_owner": "octo-org", "ref": ["refs/heads/main", "refs/heads/next"], "ref_protected": "true"}
    async with opened(tmp_path, provider, ci=staff(provider, require=required)) as stand:
        fine = {"repository_owner": "octo-org", "ref": "refs/heads/next", "ref_protected": True}
        assert isinstance(await stand.key(stand.token(**fine)), ApiKey)
        for changed in (
            {"repository_owner": "octo-org-"}, {"repository_owner": "Octo-Org"}, {"repository_owner": None},
            {"repository_owner": ["evil", {"octo-org": 1}]}, {"ref": "refs/heads/other"}, {"ref_protected": False},
        ):  # fmt: skip
            assert await stand.key(stand.token(**fine | changed)) is Refused.JWT_CLAIMS, changed


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"iss": "https://evil.example"}, Refused.JWT_ELSEWHERE), ({"aud": "other"}, Refused.JWT_ELSEWHERE),
        ({"aud": [AUDIENCE + "x"]}, Refused.JWT_ELSEWHERE), ({"iss": None}, Refused.JWT_INVALID),
        ({"aud": None}, Refused.JWT_INVALID), ({"aud": {AUDIENCE: 1}}, Refused.JWT_INVALID),
        ({"exp": int(time.time()) - 90}, Refused.JWT_EXPIRED),
        ({"exp": None}, Refused.JWT_INVALID), ({"exp": float("inf")}, Refused.JWT_INVALID),
        ({"nbf": int(time.time()) + 9_000}, Refused.JWT_EARLY), ({"iat": int(time.time()) + 9_000}, Refused.JWT_EARLY),
        ({"sub": None}, Refused.JWT_INVALID), ({"sub": "\x1b[2J"}, Refused.JWT_CLAIMS),
    ],
)  # fmt: skip
async def test_tokens_that_are_refused(stand: Stand, changed: dict[str, Any], refused: Refused) -> None:
    assert await stand.key(stand.token(**changed)) is refused


async def test_issuers_that_only_look_like_the_configured_one(stand: Stand) -> None:
    url = stand.provider.url
    assert isinstance(await stand.key(stand.token(iss=url + "/")), ApiKey), "Auth0 writes a slash"
    for iss in (
        url.replace("http", "HTTP"), url + "//", url + " ", " " + url, url + "\0", url + "#", url + "/.",
        url.replace("1", "\uff11"), url.replace(".", "\u3002"), url.replace("/", "\u2215"), url.replace("p", "\u0440"),
        url + "\u200b", url.replace("://", "://evil@"), url + ".evil.example",
    ):  # fmt: skip
        assert await stand.key(stand.token(iss=iss)) is Refused.JWT_ELSEWHERE, iss


async def test_no_algorithm_and_no_public_key_signs(stand: Stand) -> None:
    public = rsa_key().private.public_key()
    for name in ("none", "None", "", None, "HS256", ["ES256"]):
        assert await stand.key(unsigned({"alg": name, "kid": "rsa-1"}, stand.claims())) is Refused.JWT_INVALID
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), json.dumps(rsa_key().jwk).encode(),
    ):  # fmt: skip
        start = unsigned({"alg": "HS256", "kid": "rsa-1"}, stand.claims()).rpartition(".")[0]
        signature = urlsafe_b64encode(hmac.digest(secret, start.encode(), "sha256")).rstrip(b"=").decode()
        assert await stand.key(f"{start}.{signature}") is Refused.JWT_INVALID
    own = SigningKey("ec-1", "ES256", ec_key("another").private)
    assert await stand.key(stand.token(own)) is Refused.JWT_INVALID, "the id of a key of the issuer, another key"
    brought = own.signed(stand.claims(), jwk=own.jwk, jku="https://evil.example/jwks")
    assert await stand.key(brought) is Refused.JWT_INVALID
    genuine = stand.token()
    head, _, signature = genuine.split(".")
    other = urlsafe_b64encode(json.dumps(stand.claims(sub="admin")).encode()).rstrip(b"=").decode()
    assert await stand.key(f"{head}.{other}.{signature}") is Refused.JWT_INVALID


async def test_texts_that_are_no_tokens_are_refused_without_work(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    async def verify(*_: object) -> None:
        pytest.fail("verified")

    monkeypatch.setattr(TokenVerifier, "claims", verify)
    padding = "x" * module.TOKEN_CHARS_MAX
    for text in (
        "eyJ", "eyJ..", "eyJ.e30.", "eyJ.e30.x.y", "eyJ.!!!.x", "eyJ." + "W" * 8000 + ".x", stand.token(pad=padding),
        f"eyJ.{urlsafe_b64encode(b'[' * 5000).decode()}.x", "eyJ.\udcff.x", stand.token() + "\u0430",
        "eyJ" + "." * 8000,
    ):  # fmt: skip
        assert await stand.key(text) is Refused.JWT_INVALID, text[:60]


async def test_a_token_is_verified_once_and_until_it_expires(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = 0
    claims = TokenVerifier.claims

    async def counted(self: TokenVerifier, token: str) -> dict[str, Any]:
        nonlocal verified
        verified += 1
        return await claims(self, token)

    monkeypatch.setattr(TokenVerifier, "claims", counted)
    token, now = stand.token(), time.time()
    first = await stand.key(token)
    for _ in range(3):
        assert await stand.key(token) is first, "routes are kept by it"
    assert verified == 1
    stand.now = lambda: now + module.VERIFIED_S + 1
    assert isinstance(await stand.key(token), ApiKey)
    assert verified == 2, "the issuer may have withdrawn its key"
    short = stand.token(exp=int(now) + 20)
    stand.now = lambda: now
    assert isinstance(await stand.key(short), ApiKey)
    stand.now = lambda: now + 90
    await stand.key(short)
    assert verified == 4, "its end counts"
    stand.now = lambda: now
    refused = stand.token(sub="\n")
    for _ in range(5):
        assert await stand.key(refused) is Refused.JWT_CLAIMS
    assert verified == 5, "signed by the issuer, but refused: it costs no more than one of each client"
    stand.now = lambda: now + module.REFUSED_S
    assert await stand.key(refused) is Refused.JWT_CLAIMS
    assert verified == 6
    monkeypatch.setattr(module, "REMEMBERED_MAX", len(stand.identities._remembered))
    for number in range(4):
        await stand.key(stand.token(sub=f"user-{number}"))
    assert len(stand.identities._remembered) == module.REMEMBERED_MAX


async def test_guesses_are_limited_and_genuine_tokens_in_use_are_not(stand: Stand) -> None:
    known = stand.token()
    assert isinstance(await stand.key(known, "192.0.2.1"), ApiKey)
    refused = [await stand.key(f"eyJ.{number}.x", "192.0.2.1") for number in range(GUESSES_MAX + 5)]
    assert refused == [Refused.JWT_INVALID] * GUESSES_MAX + [Refused.TOO_MANY] * 5
    assert await stand.key(stand.token(sub="other"), "192.0.2.1") is Refused.TOO_MANY
    assert isinstance(await stand.key(known, "192.0.2.1"), ApiKey)
    assert isinstance(await stand.key(stand.token(sub="other"), "192.0.2.2"), ApiKey)
    expired = [await stand.key(stand.token(exp=1, jti=n), "192.0.2.3") for n in range(GUESSES_MAX + 1)]
    assert set(expired) == {Refused.JWT_EXPIRED}, "the issuer has signed it: no guess"


async def test_unknown_keys_of_the_issuer_cause_no_flood_of_requests_to_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(await stand.key(stand.token()), ApiKey)
    stand.provider.asked.clear()
    flood = [SigningKey(f"kid-{number}", "ES256", ec_key().private) for number in range(60)]
    refused = await asyncio.gather(*(stand.key(stand.token(key)) for key in flood))
    assert set(refused) == {Refused.JWT_INVALID}
    assert stand.provider.asked.count("/jwks") <= 1


def hasty(monkeypatch: pytest.MonkeyPatch, retry_s: float = 0.02) -> None:
    monkeypatch.setattr(keys_module, "RETRY_S", retry_s)


async def test_a_new_key_of_the_issuer_counts_at_once_and_a_withdrawn_one_no_more(
    tmp_path: Path, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty(monkeypatch)
    provider.keys = [ec_key()]
    async with opened(tmp_path, provider) as stand:
        assert isinstance(await stand.key(stand.token()), ApiKey)
        provider.keys = [rsa_key()]
        await until(lambda: stand.identities._identities["staff"].keys._may_wait)
        assert isinstance(await stand.key(stand.token(rsa_key())), ApiKey)
        assert await stand.key(stand.token(sub="later")) is Refused.JWT_INVALID


async def test_an_issuer_that_is_down_at_the_start_and_later(
    tmp_path: Path, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty(monkeypatch)
    monkeypatch.setattr(keys_module, "WAIT_S", 0.2)

    async def broken(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503)

    provider.broken["/jwks"] = broken
    async with opened(tmp_path, provider) as stand:
        assert await stand.key(stand.token()) is Refused.ISSUER_UNAVAILABLE
        del provider.broken["/jwks"]
        keys = stand.identities._identities["staff"].keys
        await until(lambda: not keys._outage.lasts)
        assert isinstance(await stand.key(stand.token()), ApiKey)

        provider.broken["/jwks"] = broken
        unknown = stand.token(SigningKey("new", "ES256", ec_key().private))
        await until(lambda: keys._may_wait)
        assert await stand.key(unknown) is Refused.ISSUER_UNAVAILABLE, "its key may be new"
        assert isinstance(await stand.key(stand.token(sub="other")), ApiKey), "by the keys that are in memory"


async def test_an_issuer_that_hangs_delays_nobody_whose_key_is_there(
    tmp_path: Path, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty(monkeypatch)
    monkeypatch.setattr(keys_module, "WAIT_S", 0.05)
    hangs, released = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def hanging(_: web.BaseRequest) -> web.StreamResponse:
        here.call_soon_threadsafe(hangs.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(released.wait(), here))
        return web.Response(status=503)

    async with opened(tmp_path, provider) as stand:
        assert isinstance(await stand.key(stand.token()), ApiKey)
        provider.broken["/jwks"] = hanging
        await until(lambda: stand.identities._identities["staff"].keys._may_wait)
        flood = [SigningKey(f"kid-{number}", "ES256", ec_key().private) for number in range(20)]
        async with asyncio.TaskGroup() as waiting:
            for key in flood:
                waiting.create_task(stand.key(stand.token(key)))
            await hangs.wait()
            assert isinstance(await stand.key(stand.token(sub="other")), ApiKey)
        assert provider.asked.count("/jwks") == 2
        released.set()


async def test_a_reload_that_removes_an_identity_ends_it_and_keeps_the_keys_of_the_others(stand: Stand) -> None:
    token = stand.token()
    assert isinstance(await stand.key(token), ApiKey)
    stand.provider.asked.clear()
    stand.use(staff=staff(stand.provider), other=staff(stand.provider, audience="other"))
    assert isinstance(await stand.key(token), ApiKey)
    assert isinstance(await stand.key(stand.token(aud="other")), ApiKey)
    assert stand.provider.asked.count("/jwks") == 1, "of the new one alone"
    stand.use(other=staff(stand.provider, audience="other"))
    assert await stand.key(token) is Refused.JWT_ELSEWHERE
    stand.use()
    assert stand.keyring.tokens is None
    assert await stand.key(token) is Refused.JWT_ELSEWHERE
    stand.use(staff=staff(stand.provider, require={"sub": "user-2"}))
    assert await stand.key(token) is Refused.JWT_CLAIMS, "by the settings that apply now"


async def test_without_the_ledger_known_keys_go_on_and_others_wait_for_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.project("b")
    other = staff(stand.provider, audience="other", project="b")
    stand.use(staff=staff(stand.provider), other=other)
    assert isinstance(await stand.key(stand.token()), ApiKey)
    await stand.keyring.refresh()

    def down(*_: object) -> Any:
        raise OSError("the ledger is down")

    with monkeypatch.context() as patched:
        for name in ("of_identity", "changes_since", "with_ids"):
            patched.setattr(stand.store, name, down)
        assert isinstance(await stand.key(stand.token(sub="another person")), ApiKey)
        assert await stand.key(stand.token(aud="other")) is Refused.UNAVAILABLE
    assert isinstance(await stand.key(stand.token(aud="other")), ApiKey)


async def test_a_ledger_that_hangs_is_waited_for_a_moment_by_one_call(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    from threading import Event

    from proxy.keys import keyring

    released, calls = Event(), list[object]()
    of_identity = stand.store.of_identity

    def hanging(wanted: Any) -> ApiKey:
        calls.append(wanted)
        released.wait(10)
        return of_identity(wanted)

    monkeypatch.setattr(stand.store, "of_identity", hanging)
    with monkeypatch.context() as patched:
        patched.setattr(keyring, "LOOKUP_S_MAX", 0.05)
        tokens: Sequence[str] = [stand.token(sub=f"user-{number}") for number in range(20)]
        assert set(await asyncio.gather(*map(stand.key, tokens))) == {Refused.UNAVAILABLE}
    assert len(calls) == 1
    released.set()
    assert isinstance(await stand.key(tokens[0]), ApiKey)
