"""Sign-in of operators by an identity provider: the real listener, a provider on a real socket, and attackers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from aiohttp import web
from sqlalchemy import Engine

from proxy.console import identity_sign_in
from proxy.console.api import sessions
from proxy.settings import SettingsError, parse
from proxy.settings.operators import OperatorRole
from tests.console.stand import CONFIG, READER, SECRET, SECRETS, Answered, Stand
from tests.ledger.entries import a_ledger
from tests.support.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    WELL_KNOWN,
    IdentityProvider,
    SigningKey,
    ec_key,
    query_of,
    rsa_key,
    unsigned,
)
from tests.support.web_server import as_json

pytestmark = pytest.mark.io

PUBLIC = "https://console.example"
BEGIN, CALLBACK = "/v1/session/oidc", "/v1/session/oidc/callback"
FLOW_COOKIE, SESSION_COOKIE = "__Host-tokenweir_oidc", "tokenweir_session"
SETTINGS = {
    "client_id": CLIENT_ID, "client_secret": "${CLIENT_SECRET}", "label": "Example SSO", "role_claim": "groups",
    "roles": {"staff": "read", "ops": "operate", "llm admins": "admin"},
}  # fmt: skip
ADMINS = {"groups": ["staff", "llm admins", "ops", "others"]}


@pytest.fixture(scope="module")
def one_provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.close()


@pytest.fixture
def provider(one_provider: IdentityProvider) -> IdentityProvider:
    """As it is at the beginning."""
    one_provider.keys = [ec_key()]
    one_provider.claims = {"sub": "user-1", "email": "ann@example.com", "email_verified": True, **ADMINS}
    one_provider.configuration, one_provider.broken, one_provider.asked = {}, {}, []
    one_provider.token = lambda self, claims: self.keys[0].signed(claims)
    return one_provider


Opener = Callable[..., Stand]


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Engine]]:
    """A data folder and its ledger."""
    folder = tmp_path_factory.mktemp("console")
    engine = a_ledger(folder)
    yield folder, engine
    engine.dispose()


def opened(
    furnished: tuple[Path, Engine], provider: IdentityProvider, public_url: str = PUBLIC, **changed: Any
) -> Stand:
    """A console with these settings of `admin.oidc`."""
    folder, engine = furnished
    oidc = json.dumps({"issuer": provider.url, **SETTINGS, **changed})
    config = CONFIG.replace("admin:\n", f"admin:\n  public_url: {public_url}\n  oidc: {oidc}\n")
    return Stand(folder, engine, config.replace("${CLIENT_SECRET}", CLIENT_SECRET) + "allow_literal_secrets: true\n")


@pytest.fixture
def open_stand(furnished: tuple[Path, Engine], provider: IdentityProvider) -> Iterator[Opener]:
    """Opens a console that knows nothing of the provider yet."""
    stands: list[Stand] = []

    def open_it(**options: Any) -> Stand:
        stands.append(opened(furnished, provider, **options))
        return stands[-1]

    yield open_it
    for stand in stands:
        stand.close()


@pytest.fixture(scope="module")
def one_stand(furnished: tuple[Path, Engine], one_provider: IdentityProvider) -> Iterator[Stand]:
    stand = opened(furnished, one_provider)
    yield stand
    stand.close()


@pytest.fixture
def stand(one_stand: Stand, provider: IdentityProvider) -> Stand:
    """A console that several tests use: it may know the provider's configuration and key."""
    return one_stand


class Browser:
    """Keeps cookies, and follows a sign-in step by step. Its address bar shows `console.example`."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.cookies: dict[str, str] = {}
        self.set: list[Any] = []
        """the cookies of the last answer"""

    def get(self, target: str, method: str = "GET", body: Any = None, **headers: str) -> Answered:
        sent = {"Host": "console.example", "Cookie": "; ".join(f"{n}={v}" for n, v in self.cookies.items()), **headers}
        where = urlsplit(self.stand.url)
        connection = HTTPConnection(where.hostname or "", where.port, timeout=20)
        connection.request(method, target, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        text = response.read()
        self.set = [one for line in response.headers.get_all("Set-Cookie", []) for one in SimpleCookie(line).values()]
        for one in self.set:
            self.cookies[one.key] = one.coded_value
            if one["max-age"] == "0":
                del self.cookies[one.key]
        connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return Answered(response.status, dict(response.headers), json.loads(text) if is_json else text.decode())

    def begin(self) -> str:
        """The provider's URL to which the console leads."""
        answered = self.get(BEGIN)
        assert answered.status == 302, answered
        return answered.headers["Location"]

    def answer(self) -> dict[str, str]:
        """The parameters with which the provider sends the browser back."""
        return at_provider(self.begin())

    def finish(self, answer: dict[str, str], **headers: str) -> Answered:
        return self.get(f"{CALLBACK}?{urlencode(answer)}", **headers)

    def sign_in(self) -> Answered:
        return self.finish(self.answer())

    def me(self) -> Answered:
        return self.get("/v1/me")


def at_provider(location: str) -> dict[str, str]:
    """What the provider answers to the browser."""
    where = urlsplit(location)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=10)
    connection.request("GET", f"{where.path}?{where.query}")
    answered = connection.getresponse()
    back = answered.headers["Location"]
    connection.close()
    assert answered.status == 302
    assert back.startswith(f"{PUBLIC}{CALLBACK}?")
    return query_of(back)


def refused(answered: Answered, status: int, *words: str) -> None:
    """A clear page, and no session."""
    assert (answered.status, answered.headers["Content-Type"]) == (status, "text/html; charset=utf-8"), answered
    for word in words:
        assert word in answered.body
    assert "script" not in answered.body
    assert "default-src 'none'" in answered.headers["Content-Security-Policy"]
    assert f'href="{PUBLIC}/"' in answered.body


def test_a_sign_in_gives_the_session_of_the_highest_role(open_stand: Opener, provider: IdentityProvider) -> None:
    browser = Browser(open_stand())
    begun = browser.get(BEGIN)
    (flow,) = browser.set
    assert (flow.key, flow["secure"], flow["httponly"], flow["samesite"]) == (FLOW_COOKIE, True, True, "Lax")
    asked = query_of(begun.headers["Location"])
    assert asked["redirect_uri"] == f"{PUBLIC}{CALLBACK}"
    assert asked["scope"] == "openid email profile"
    assert not {asked["state"], asked["nonce"]} & set(flow.value.split("."))
    answered = browser.finish(at_provider(begun.headers["Location"]))
    assert (answered.status, answered.headers["Location"]) == (302, f"{PUBLIC}/")
    session = next(one for one in browser.set if one.key == SESSION_COOKIE)
    assert (session["secure"], session["httponly"], session["samesite"]) == (True, True, "Strict")
    assert list(browser.cookies) == [SESSION_COOKIE]
    me = browser.me().body
    assert (me["role"], me["name"], me["may"]) == ("operator", "ann@example.com", "admin")
    assert provider.asked == [WELL_KNOWN, "/authorize", "/token", "/jwks"]
    assert browser.sign_in().status == 302
    assert provider.asked[4:] == ["/authorize", "/token"]  # what is known is not asked for again
    assert browser.get("/v1/session", "DELETE").status == 204
    assert (browser.cookies, browser.me().status) == ({}, 401)


def test_the_audit_log_names_issuer_subject_and_name(stand: Stand, provider: IdentityProvider) -> None:
    provider.claims |= {"email": "admin\u202e\n" + "x" * 300, "sub": "s" * 128}
    browser = Browser(stand)
    browser.sign_in()
    assert browser.get("/key/generate", "POST", {"key_alias": "new"}, Origin=PUBLIC).status == 200
    act = stand.get("/v1/audit")["data"][0]
    assert act["actor"] == f"admin{'x' * 59} ({provider.url}, {'s' * 128})"
    assert browser.get("/key/generate", "POST", {"key_alias": "2"}, Origin="https://evil.example").status == 403


@pytest.mark.parametrize(
    ("claims", "may"),
    [({"groups": "staff"}, "read"), ({"groups": ["ops", 5, None]}, "operate"), ({"groups": ["STAFF"]}, None),
     ({"groups": {"staff": True}}, None), ({"groups": None}, None), ({"groups": [["staff"]]}, None)],
)  # fmt: skip
def test_roles(stand: Stand, provider: IdentityProvider, claims: dict[str, Any], may: str | None) -> None:
    provider.claims |= claims
    browser = Browser(stand)
    answered = browser.sign_in()
    if may is None:
        refused(answered, 403, "ann@example.com: you have no role here", "&#x27;groups&#x27;")
        assert browser.cookies == {}
        return
    assert browser.me().body["may"] == may
    credit = {"account": "org_default", "usd": 1, "reason": "r", "id": "i"}
    low = browser.get("/credit/add", "POST", credit, Origin=PUBLIC)
    assert (low.status, low.body["error"]["code"]) == (403, "role_too_low")
    assert "admin.oidc.roles" in low.body["error"]["message"]


@pytest.mark.thorough
def test_claims_of_other_providers(open_stand: Opener, provider: IdentityProvider) -> None:
    """Keycloak's nested roles, names with dots, and e-mail addresses as roles."""
    for number, (claim, claims, is_in) in enumerate((
        ("realm_access.roles", {"realm_access": {"roles": ["ops"]}}, True),
        ("https://x.example/roles", {"https://x.example/roles": ["ops"]}, True),
        ("realm_access.roles", {"realm_access": ["ops"]}, False),
        ("email", {"email": "ops"}, True), ("email", {"email": "ops", "email_verified": False}, False),
        ("email", {"email": "ops", "email_verified": None}, False),
    )):  # fmt: skip
        provider.claims = {"sub": f"user-{number}", "email": "a@b.c", "email_verified": True, **claims}
        browser = Browser(open_stand(role_claim=claim))
        assert browser.sign_in().status == (302 if is_in else 403), claim
    provider.claims |= {"email": "ops", "email_verified": False}
    assert "user-5: you have no role" in browser.sign_in().body  # what is not verified names nobody


@pytest.mark.thorough
def test_only_verified_addresses_of_the_domains(open_stand: Opener, provider: IdentityProvider) -> None:
    browser = Browser(open_stand(email_domains=["example.com"]))
    for email, verified, status in (
        ("ann@example.com", True, 302), ("Ann@EXAMPLE.com", "true", 302), ("ann@example.com", False, 403),
        ("ann@example.com", None, 403), ("ann@example.com.evil.org", True, 403), ("ann@sub.example.com", True, 403),
        ("example.com", True, 403), ("ann@example.com@evil.org", True, 403), ("ann@ex\u212ample.com", True, 403),
    ):  # fmt: skip
        provider.claims |= {"email": email, "email_verified": verified}
        assert browser.sign_in().status == status, email


def test_another_browser_cannot_end_it(stand: Stand) -> None:
    """Login CSRF: the victim's browser is sent to the callback with the attacker's code; and the reverse."""
    attacker, victim = Browser(stand), Browser(stand)
    refused(victim.finish(attacker.answer()), 400, "not begun in this browser")
    victim.begin()
    refused(victim.finish(attacker.answer()), 400, "not begun in this browser")
    assert victim.me().status == 401
    mine, answer = attacker.answer(), victim.answer()
    refused(victim.finish({"code": mine["code"], "state": answer["state"]}), 502, "invalid_grant")  # PKCE
    mine, answer = attacker.answer(), victim.answer()
    twice = f"{CALLBACK}?{urlencode(answer)}&{urlencode(mine)}"
    refused(victim.get(twice), 400, "not begun in this browser")
    assert victim.cookies == {}


@pytest.mark.parametrize("answer", [{}, {"state": ""}, {"state": "é"}, {"code": "x"}, {"state": "%", "code": "x"}])
def test_an_answer_without_the_state_asks_nobody(
    stand: Stand, provider: IdentityProvider, answer: dict[str, str]
) -> None:
    browser = Browser(stand)
    browser.begin()
    provider.asked.clear()
    refused(browser.finish(answer), 400, "not begun in this browser")
    browser.begin()
    refused(browser.get(f"{CALLBACK}?state=%ff&code=%00&{'a=1&' * 60}"), 400)
    assert provider.asked == []


def test_a_sign_in_ends_once_and_in_time(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser(stand)
    answer = browser.answer()
    kept = dict(browser.cookies)
    assert browser.finish(answer).status == 302
    session = browser.cookies[SESSION_COOKIE]
    refused(browser.finish(answer), 400, "not begun in this browser")
    browser.cookies |= kept  # somebody kept the cookie, too: the code is used
    refused(browser.finish(answer), 502, "invalid_grant")
    assert browser.cookies == {SESSION_COOKIE: session}
    monkeypatch.setattr(identity_sign_in, "FLOW_S", -1)
    refused(browser.sign_in(), 400, "more than ten minutes ago")


def test_a_cookie_that_was_made_up_or_changed_begins_nothing(stand: Stand) -> None:
    browser = Browser(stand)
    answer = browser.answer()
    cookie = browser.cookies[FLOW_COOKIE]
    text, _, until = cookie.rpartition(".")
    for forged in ("", ".", "x.9999999999", f"{text}.{int(until) + 1}", f"{text}x.{until}", text, f"{text}.-1", "é"):
        browser.cookies[FLOW_COOKIE] = forged
        assert browser.finish(answer).status == 400, forged


def test_a_session_that_was_planted_does_not_stay(stand: Stand) -> None:
    """Fixation: whatever session the browser had, afterwards it has the one of who signed in."""
    planted = stand("POST", "/v1/session", key=READER, Host="console.example").headers["Set-Cookie"]
    browser = Browser(stand)
    browser.cookies[SESSION_COOKIE] = next(iter(SimpleCookie(planted).values())).coded_value
    assert browser.me().body["may"] == "read"
    browser.sign_in()
    assert browser.me().body["may"] == "admin"


def test_no_request_says_where_the_browser_goes(stand: Stand) -> None:
    browser = Browser(stand)
    forged = {"Host": "console.example", "X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
    for target in (BEGIN, f"{BEGIN}?redirect_uri=https://evil.example&next=//evil.example"):
        location = browser.get(target, **forged).headers["Location"]
        assert query_of(location)["redirect_uri"] == f"{PUBLIC}{CALLBACK}"
        assert "evil" not in location
    assert "evil" not in browser.get(BEGIN, Host="evil.example").headers["Location"]
    answer = {**browser.answer(), "redirect_uri": "https://evil.example", "next": "//evil.example"}
    assert browser.finish(answer, **forged).headers["Location"] == f"{PUBLIC}/"
    answer = browser.answer()
    assert browser.finish({**answer, "state": f'"><script>{answer["state"]}'}).status == 400


@pytest.mark.thorough
def test_an_answer_of_another_issuer_is_refused(open_stand: Opener, provider: IdentityProvider) -> None:
    """Mix-up: RFC 9207."""
    browser = Browser(open_stand())
    refused(browser.finish({**browser.answer(), "iss": "https://evil.example"}), 403, "another issuer")
    assert browser.finish({**browser.answer(), "iss": provider.url}).status == 302
    provider.configuration["authorization_response_iss_parameter_supported"] = True
    browser = Browser(open_stand())
    refused(browser.sign_in(), 403, "another issuer")
    assert "/token" not in provider.asked[-2:]
    assert browser.finish({**browser.answer(), "iss": provider.url}).status == 302


def test_the_provider_says_no(stand: Stand) -> None:
    for error, word in (("access_denied", "(access_denied)"), ("<script>alert(1)", "(unknown error)")):
        browser = Browser(stand)
        state = query_of(browser.begin())["state"]
        refused(browser.finish({"error": error, "state": state}), 403, word)


WRONG_TOKENS: dict[str, Any] = {
    "has expired": lambda own, claims: own.keys[0].signed({**claims, "exp": int(time.time()) - 100}),
    "another audience": lambda own, claims: own.keys[0].signed({**claims, "aud": "other"}),
    "another issuer": lambda own, claims: own.keys[0].signed({**claims, "iss": "https://evil.example"}),
    "to another client": lambda own, claims: own.keys[0].signed({**claims, "azp": "other"}),
    "to another client ": lambda own, claims: own.keys[0].signed({**claims, "aud": [CLIENT_ID, "other"]}),
    "another sign-in": lambda own, claims: own.keys[0].signed({**claims, "nonce": "of another"}),
    "another sign-in ": lambda own, claims: own.keys[0].signed({**claims, "nonce": "\ud800"}),
    "another sign-in  ": lambda own, claims: own.keys[0].signed({k: v for k, v in claims.items() if k != "nonce"}),
    "asymmetric": lambda own, claims: unsigned({"alg": "none"}, claims),
    "wrong signature": lambda own, claims: SigningKey("ec-1", "ES256", ec_key("foreign").private).signed(claims),
    "known key": lambda own, claims: ec_key("foreign").signed(claims),
    "128 ASCII": lambda own, claims: own.keys[0].signed({**claims, "sub": "x" * 129}),
    "128 ASCII ": lambda own, claims: own.keys[0].signed({**claims, "sub": "x\n(y"}),
    "no ID token": lambda own, claims: None,
}


@pytest.mark.parametrize("why", WRONG_TOKENS)
def test_a_token_that_is_wrong_signs_nobody_in(stand: Stand, provider: IdentityProvider, why: str) -> None:
    provider.token = WRONG_TOKENS[why]
    browser = Browser(stand)
    refused(browser.sign_in(), 403, why.strip())
    assert (browser.cookies, browser.me().status) == ({}, 401)


def test_several_audiences_with_the_right_client(stand: Stand, provider: IdentityProvider) -> None:
    provider.claims |= {"aud": [CLIENT_ID, "other"], "azp": CLIENT_ID}
    assert Browser(stand).sign_in().status == 302


@pytest.mark.thorough
def test_keys_rotate(open_stand: Opener, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = open_stand()
    monkeypatch.setattr("proxy.identity.documents.RETRY_S", 0.0)
    assert Browser(stand).sign_in().status == 302
    provider.keys = [rsa_key()]
    assert Browser(stand).sign_in().status == 302
    assert provider.asked.count("/jwks") == 2


async def _slow(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        await response.write(b" " * 65_536)
    return response


async def _elsewhere(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})


async def _rubbish(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=b"\x00<html>")


async def _others(_: web.BaseRequest) -> web.StreamResponse:
    evil = "https://evil.example"
    return as_json({"issuer": evil, "authorization_endpoint": evil, "token_endpoint": evil, "jwks_uri": evil})


async def _unsafe(request: web.BaseRequest) -> web.StreamResponse:
    own = f"http://{request.headers['Host']}"
    return as_json(
        {"issuer": own, "authorization_endpoint": "javascript:alert(1)", "token_endpoint": own, "jwks_uri": own}
    )


async def _array(_: web.BaseRequest) -> web.StreamResponse:
    return as_json([])


@pytest.mark.thorough
@pytest.mark.parametrize("path", [WELL_KNOWN, "/token", "/jwks"])
@pytest.mark.parametrize("broken", [_slow, _elsewhere, _rubbish, _others, _unsafe, _array])
def test_a_broken_provider_gives_a_clear_page_and_secrets_still_work(
    open_stand: Opener, provider: IdentityProvider, path: str, broken: Any
) -> None:
    stand = open_stand()
    provider.broken[path] = broken
    browser = Browser(stand)
    answered = browser.get(BEGIN)
    if path == WELL_KNOWN:
        words = {
            "_slow": "more than 256 KiB", "_elsewhere": "redirect", "_rubbish": "JSON", "_others": "another issuer",
            "_unsafe": "authorization_endpoint", "_array": "is not the configuration",
        }[broken.__name__]  # fmt: skip
        refused(answered, 502, "cannot be used now", words)
    else:
        answered = browser.finish(at_provider(answered.headers["Location"]))
        assert answered.status in (403, 502)
        refused(answered, answered.status)
    assert browser.cookies == {}
    assert stand("POST", "/v1/session", key=SECRET).status == 200


def test_a_provider_that_is_down_is_said_and_comes_back(
    open_stand: Opener, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = open_stand()

    async def down(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503)

    monkeypatch.setattr("proxy.identity.documents.RETRY_S", 0.0)
    provider.broken[WELL_KNOWN] = down
    refused(Browser(stand).get(BEGIN), 502, WELL_KNOWN, "answers 503")
    provider.broken.clear()
    assert Browser(stand).sign_in().status == 302
    provider.broken[WELL_KNOWN] = down  # what was known stays in use
    assert Browser(stand).sign_in().status == 302


def test_only_a_few_wait_for_the_provider(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser(stand)
    answer = browser.answer()
    monkeypatch.setattr(identity_sign_in, "WAITING_MAX", 0)
    refused(browser.finish(answer), 503, "Too many sign-ins wait")


@pytest.mark.thorough
def test_the_client_secret_of_another_is_refused_in_words(open_stand: Opener) -> None:
    refused(Browser(open_stand(client_secret="wrong")).sign_in(), 502, "refused the code: invalid_client")


def test_the_session_ends_eight_hours_after_the_sign_in(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it is used: a person who has left the company is out."""
    browser = Browser(stand)
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "SESSION_S", 60)  # below RENEWED_S: a session of a secret would be renewed at once
        browser.sign_in()
    session = dict(browser.cookies)
    assert browser.get("/v1/session", "POST", Origin=PUBLIC).status == 200
    assert browser.me().status == 200
    assert (browser.set, browser.cookies) == ([], session)
    monkeypatch.setattr(sessions, "SESSION_S", -1)
    browser.sign_in()
    for target in ("/v1/me", "/v1/live"):
        ended = browser.get(target, Accept="text/event-stream")
        assert (ended.status, ended.body["error"]["code"]) == (401, "session_ended")


def test_who_watches_is_not_asked_to_come_again_for_a_session_that_cannot_be_renewed() -> None:
    of_secret = sessions.Operator("ben", OperatorRole.READ, b"")
    by_identity = sessions.IdentityOperators("https://sso.example", b"").operator("ben", OperatorRole.READ, "1")
    signed_in = sessions.Sessions(None, None, lambda: 100.0)  # type: ignore[arg-type]
    for operator, is_half_over in ((of_secret, True), (by_identity, False)):
        session = sessions.ConsoleSession(None, None, operator, until=160)
        assert signed_in.is_half_over(session) is is_half_over


@pytest.mark.thorough
def test_other_settings_end_the_sessions(open_stand: Opener, provider: IdentityProvider) -> None:
    browser = Browser(open_stand())
    browser.sign_in()
    browser.stand = open_stand(label="Other words", scopes=["groups"])
    assert browser.me().status == 200  # and another proxy accepts it
    roles = {**SETTINGS["roles"], "llm admins": "read"}  # type: ignore[dict-item]
    for changed in ({"roles": roles}, {"email_domains": ["example.com"]}, {"role_claim": "other"}):
        browser.stand = open_stand(**changed)
        assert browser.me().status == 401


def test_a_session_that_was_made_up_or_changed(stand: Stand) -> None:
    browser = Browser(stand)
    browser.sign_in()
    handle, until, mac = browser.cookies[SESSION_COOKIE].strip('"').rsplit(".", 2)
    operator = identity_sign_in.IdentityOperators("x", b"").operator("ann", OperatorRole.ADMIN, "user-1")
    for forged in (
        operator.cookie(int(until)), f"{handle}.{int(until) + 1}.{mac}", f"{handle}A.{until}.{mac}", "oidc:.1.2",
        f"oidc:{'A' * 2_000}.{until}.{mac}", f"oidc:bnVsbA.{until}.{mac}", f"admin.{until}.{mac}", "oidc:é.1.2",
    ):  # fmt: skip
        browser.cookies[SESSION_COOKIE] = forged
        assert browser.me().status == 401, forged


@pytest.mark.thorough
def test_the_page_offers_it_only_where_it_is_configured(open_stand: Opener, tmp_path: Path) -> None:
    offered = open_stand()("GET", "/v1/session", key=None)
    assert (offered.status, offered.body["oidc"]) == (200, {"label": "Example SSO", "url": f"{PUBLIC}{BEGIN}"})
    folder = tmp_path / "other"
    folder.mkdir()
    engine = a_ledger(folder)
    without = Stand(folder, engine)
    assert without("GET", "/v1/session", key=None).body["oidc"] is None
    assert without("GET", BEGIN, key=None).status == 404
    assert without("GET", CALLBACK, key=None).status == 404
    without.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"issuer": "http://sso.example"}, "admin.oidc.issuer: must be https://"),
        ({"issuer": "https://sso.example/" + "x" * 100}, "admin.oidc.issuer: must have at most 100"),
        ({"client_secret": "literal"}, "admin.oidc.client_secret: a secret does not belong"),
        ({"roles": {}}, "admin.oidc.roles: must be a mapping with at least one name"),
        ({"roles": {"staff": "root"}}, "admin.oidc.roles.staff: must be"),
        ({"email_domains": ["@example.com"]}, "admin.oidc.email_domains[0]: must be a domain"),
        ({"role_claim": None}, "admin.oidc.role_claim: is missing"),
        ({"tls": {"ca_file": "x"}, "issuer": "http://127.0.0.1"}, "admin.oidc.tls: needs a `issuer` of https://"),
        ({"public_url": None}, "admin.public_url: is missing"),
        ({"public_url": "http://console.example"}, "admin.public_url: must be https://"),
    ],
)  # fmt: skip
def test_settings_that_are_wrong(changed: dict[str, Any], why: str) -> None:
    public_url = changed.pop("public_url", PUBLIC)
    oidc = {"issuer": "https://sso.example", **SETTINGS, **changed}
    text = CONFIG.replace("admin:\n", f"admin:\n  public_url: {json.dumps(public_url)}\n  oidc: {json.dumps(oidc)}\n")
    with pytest.raises(SettingsError) as caught:
        parse(text, env={**SECRETS, "CLIENT_SECRET": CLIENT_SECRET}, folder=Path("/"))
    assert why in str(caught.value)
