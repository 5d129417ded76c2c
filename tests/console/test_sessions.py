"""Who signs in to the console, for how long, and what each operator may do."""

from __future__ import annotations

import time
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proxy.console.api import live, sessions
from proxy.settings import SettingsError, parse
from proxy.settings.operators import OperatorRole
from tests.console.stand import READER, SECRET, WORKER, Answered, Stand

pytestmark = pytest.mark.io

NEW_KEY = {"key_alias": "new"}


def cookie_of(answered: Answered) -> str:
    """What the browser sends back."""
    (morsel,) = SimpleCookie(answered.headers["Set-Cookie"]).values()
    assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "Strict", "/")
    return f"{morsel.key}={morsel.coded_value}"


def signed_in(stand: Stand, secret: str = SECRET) -> str:
    answered = stand("POST", "/v1/session", key=secret)
    assert answered.status == 200
    return cookie_of(answered)


def test_a_secret_is_exchanged_for_a_session_with_a_name(stand: Stand) -> None:
    for secret, name, may in (
        (SECRET, "admin", "admin"),
        (READER, "ann@example.com", "read"),
        (WORKER, "ben", "operate"),
    ):
        answered = stand("GET", "/v1/me", key=None, Cookie=signed_in(stand, secret))
        assert (answered.status, answered.body["name"], answered.body["may"]) == (200, name, may)
        assert answered.body["role"] == "operator"
    refused = stand("POST", "/v1/session", key=stand.key())
    assert (refused.status, refused.body["error"]["code"]) == (403, "operator_only")
    assert "Set-Cookie" not in refused.headers


def test_a_query_about_a_key_is_no_key_in_the_url(stand: Stand) -> None:
    """Before: 401 for a session, and 200 with the secret in a header."""
    stand.key("key-1")
    answered = stand("GET", "/key/info?key=key-1", key=None, Cookie=signed_in(stand))
    assert (answered.status, answered.body["key"]) == (200, "key-1")
    refused = stand("GET", "/key/info?key=key-1", key=None)
    assert (refused.status, "URL" in refused.body["error"]["message"]) == (401, True)


@pytest.mark.parametrize(
    ("path", "body", "least"),
    [("/key/generate", NEW_KEY, "operate"), ("/account/new", {"kind": "project", "name": "p"}, "operate"),
     ("/credit/add", {"account": "org_default", "usd": 1, "reason": "r", "id": "i"}, "admin"),
     ("/v1/periods/close", {"month": "2026-09"}, "admin")],
)  # fmt: skip
def test_a_role_is_a_limit(stand: Stand, path: str, body: object, least: str) -> None:
    order = ("read", "operate", "admin")
    for secret, role in ((READER, "read"), (WORKER, "operate"), (SECRET, "admin")):
        answered = stand("POST", path, body, key=secret)
        if order.index(role) < order.index(least):
            assert (answered.status, answered.body["error"]["code"]) == (403, "role_too_low")
            assert f"needs '{least}'" in answered.body["error"]["message"]
        else:
            assert answered.status != 403, answered


def test_the_audit_log_names_who(stand: Stand) -> None:
    assert stand("POST", "/key/generate", NEW_KEY, key=None, Cookie=signed_in(stand, WORKER)).status == 200
    (act,) = stand.get("/v1/audit")["data"]
    assert act["actor"] == "ben"


def test_another_page_changes_nothing(stand: Stand) -> None:
    cookie = signed_in(stand)
    for headers in (
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "https://evil.example"},
    ):
        answered = stand("POST", "/key/generate", NEW_KEY, key=None, Cookie=cookie, **headers)
        assert (answered.status, answered.body["error"]["code"]) == (403, "other_page")
    origin = stand.url
    for headers in ({"Sec_Fetch_Site": "same-origin", "Origin": origin}, {"Origin": origin}):
        body = {"key_alias": f"new-{len(headers)}"}
        assert stand("POST", "/key/generate", body, key=None, Cookie=cookie, **headers).status == 200


def test_a_session_that_is_used_goes_on_and_another_ends(stand: Stand) -> None:
    operator = sessions.Operator("ben", OperatorRole.OPERATE, sessions._digest(WORKER))
    now = int(time.time())

    def asked(until: int) -> Answered:
        name = sessions.cookie_name(urlsplit(stand.url).netloc)
        return stand("GET", "/v1/me", key=None, Cookie=f"{name}={operator.cookie(until)}")

    fresh, used = asked(now + sessions.SESSION_S), asked(now + 60)
    assert (fresh.status, "Set-Cookie" in fresh.headers) == (200, False)
    assert int(cookie_of(used).split(".")[-2]) >= now + sessions.SESSION_S
    ended = asked(now - 1)
    assert (ended.status, ended.body["error"]["code"]) == (401, "session_ended")


def test_who_watches_goes_on(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream renews the session in its head, and ends in time for the next one to do so."""
    monkeypatch.setattr(live, "EVERY_S", 0.02)
    operator = sessions.Operator("ben", OperatorRole.OPERATE, sessions._digest(WORKER))
    name = sessions.cookie_name(urlsplit(stand.url).netloc)
    until = int(time.time()) + sessions.SESSION_S // 2 + 1
    cookie = f"{name}={operator.cookie(until)}"
    watched = stand("GET", "/v1/live", key=None, Cookie=cookie, Accept="text/event-stream")
    assert watched.body.startswith(b"event: live")
    assert int(cookie_of(watched).split(".")[-2]) > until


def test_what_was_made_up_or_changed_is_no_session(stand: Stand) -> None:
    name, _, content = signed_in(stand, READER).partition("=")
    content = content.strip('"')
    user, until, mac = content.rsplit(".", 2)
    for forged in (
        f"ben.{until}.{mac}", f"{user}.{int(until) + 1}.{mac}", f"{user}.{until}.{mac[:-1]}", f"{user}.{until}.",
        f"nobody.{until}.{mac}", "", "..", f"{user}.-1.{mac}", f"{user}.9{until}.{mac}", "é.1.2", "x" * 3_000,
    ):  # fmt: skip
        assert stand("GET", "/v1/me", key=None, Cookie=f"{name}={forged}").status == 401, forged
    assert stand("GET", "/v1/me", key=None, Cookie=f'{name}="{content}"').status == 200


def test_signing_out_forgets_it_and_tls_keeps_it_there(stand: Stand) -> None:
    answered = stand("DELETE", "/v1/session", key=None)
    assert (answered.status, "Max-Age=0" in answered.headers["Set-Cookie"]) == (204, True)
    behind_tls = stand("POST", "/v1/session", X_Forwarded_Proto="https")
    assert "Secure" in behind_tls.headers["Set-Cookie"]
    assert "Secure" not in stand("POST", "/v1/session").headers["Set-Cookie"]


def test_consoles_on_two_ports_of_a_host_have_two_cookies(stand: Stand) -> None:
    """Browsers send a cookie to every port, and keep one of each name."""
    hosts = {"console.example:8090": READER, "console.example:8091": SECRET, "console.example": WORKER, "[::1]": SECRET}
    kept = {host: cookie_of(stand("POST", "/v1/session", key=secret, Host=host)) for host, secret in hosts.items()}
    names = [one.partition("=")[0] for one in kept.values()]
    assert names == ["tokenweir_session_8090", "tokenweir_session_8091", "tokenweir_session", "tokenweir_session"]
    all_of_them = "; ".join(one for host, one in kept.items() if host != "[::1]")
    for host, name in (("console.example:8090", "ann@example.com"), ("console.example:8091", "admin")):
        assert stand("GET", "/v1/me", key=None, Cookie=all_of_them, Host=host).body["name"] == name
    out = stand("DELETE", "/v1/session", key=None, Host="console.example:8091")
    assert out.headers["Set-Cookie"].startswith("tokenweir_session_8091=")


def test_two_operators_have_two_secrets() -> None:
    text = f"""
admin: {{secret: "{SECRET}", operators: {{ann: {{secret: "{READER}"}}, ben: {{secret: "{SECRET}"}}}}}}
providers: {{tera: {{base_url: "http://127.0.0.1:1/v1"}}}}
models: {{"*": {{provider: tera}}}}
allow_literal_secrets: true
"""
    with pytest.raises(SettingsError, match=r"admin\.operators\.ben\.secret: is another operator's, too"):
        parse(text, env={}, folder=Path("/"))
    with pytest.raises(SettingsError, match=r"admin\.operators\.admin: invalid name"):
        parse(text.replace("ben", "admin"), env={}, folder=Path("/"))
