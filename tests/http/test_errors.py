"""Refusals: one shape, which the SDK turns into its own exceptions; nothing of ours in the words."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from proxy.http import errors
from proxy.http.connection import ClientConnection, refused_response
from proxy.http.errors import ApiError
from proxy.http.server import Routes, Server
from proxy.keys.access import Refused
from tests.support.clients import Clients, refusal

ALL: dict[str, ApiError] = {
    "bad_request": errors.bad_request("wrong", param="n", code="invalid_value"),
    "malformed": errors.malformed(),
    "internal": errors.internal(),
    "unknown_route": errors.unknown_route("GET", "/v1/x"),
    "method_not_allowed": errors.method_not_allowed("GET", ("POST",)),
    "no_upgrade": errors.no_upgrade(),
    "upgrade_needed": errors.upgrade_needed(),
    "origin_not_allowed": errors.origin_not_allowed(),
    "nothing_asked": errors.nothing_asked(),
    "too_many_waiting": errors.too_many_waiting(32),
    "model_missing": errors.model_missing("model"),
    "other_provider": errors.other_provider("m"),
    "unknown_model": errors.unknown_model("m"),
    "unknown_response": errors.unknown_response("resp_1"),
    "unknown_previous_response": errors.unknown_previous_response("resp_1"),
    "unknown_stream": errors.unknown_stream(),
    "stream_overwritten": errors.stream_overwritten(),
    "stream_incomplete": errors.stream_incomplete(),
    "response_running": errors.response_running("resp_1"),
    "responses_unknown": errors.responses_unknown(),
    "unknown_object": errors.unknown_object("file", "file-1"),
    "unknown_file_named": errors.unknown_file_named("file-1"),
    "objects_unknown": errors.objects_unknown(),
    "results_unrecorded": errors.results_unrecorded(),
    "results_lost": errors.results_lost(),
    "unsupported_dialect": errors.unsupported_dialect("m", "/v1/x"),
    "model_not_allowed": errors.model_not_allowed("m"),
    "missing_dimension": errors.missing_dimension("tag:team"),
    "cap_unknown run": errors.cap_unknown(of_run=True),
    "cap_unknown key": errors.cap_unknown(of_run=False),
    "stored_not_allowed": errors.stored_not_allowed(),
    "byok_not_allowed": errors.byok_not_allowed(),
    "byok_missing": errors.byok_missing(),
    "byok_unsupported": errors.byok_unsupported("background"),
    "byok_model": errors.byok_model("m"),
    "model_unpriced": errors.model_unpriced("m"),
    "billed_by_time": errors.billed_by_time("m"),
    "budget_cut": errors.budget_cut(),
    **{f"key_refused {reason}": errors.key_refused(reason) for reason in (*Refused, "in_url")},
    "overloaded": errors.overloaded("Too many.", code="not_accepting"),
    "upstream_failed": errors.upstream_failed(),
    "keys_unavailable": errors.keys_unavailable(),
    "no_upstream_credentials": errors.no_upstream_credentials(),
    "out_of_connections": errors.out_of_connections(),
    "no_provider": errors.no_provider("m", retry_after_s=7),
    "upstream_proxy_failed": errors.upstream_proxy_failed(),
    "upstream_auth": errors.upstream_auth(),
    "upstream_limited": errors.upstream_limited(retry_after_s=7),
    "upstream_stalled": errors.upstream_stalled(),
    "stopped_by_operator": errors.stopped_by_operator(),
    "shutting_down": errors.shutting_down(),
}


def test_every_refusal_of_the_module_is_here() -> None:
    made = {
        name
        for name, maker in inspect.getmembers(errors, inspect.isfunction)
        if inspect.signature(maker).return_annotation == "ApiError"
    }
    assert {name.split()[0] for name in ALL} == made


@pytest.mark.parametrize("name", ALL)
def test_shape(name: str) -> None:
    body = json.loads(ALL[name].body())
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert body["error"]["code"]
    assert ALL[name].event() == b"data: " + ALL[name].body() + b"\n\n"


@pytest.mark.io
@pytest.mark.thorough
async def test_the_sdk_understands_each() -> None:
    """The client names the one that it wants as its model."""

    async def refuse(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        raise ALL[(await request.json())["model"]]

    routes = Routes()
    routes.local("POST", "/v1/chat/completions", refuse)
    server = Server(routes, refused=lambda _status, _code: None)
    port = await server.start("127.0.0.1", 0)
    async with Clients(plain=False) as clients:
        completions = clients.gpt(f"http://127.0.0.1:{port}").chat.completions
        for name, made in ALL.items():
            with refusal(made.status) as raised:
                await completions.create(model=name, messages=[{"role": "user", "content": "x"}])
            error = raised.value
            assert (error.code, error.param, error.type) == (made.code, made.param, made.kind), name
            assert error.body["message"] == made.message, name
    await server.stop_listening()
    await server.close()


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("missing", "invalid_api_key"),
        ("malformed", "invalid_api_key"),
        ("unknown", "invalid_api_key"),
        ("expired", "expired_api_key"),
        ("replaced", "expired_api_key"),
        ("revoked", "revoked_api_key"),
        ("blocked", "blocked_api_key"),
        ("jwt_invalid", "invalid_token"),
        ("jwt_elsewhere", "invalid_token"),
        ("jwt_early", "invalid_token"),
        ("jwt_expired", "expired_token"),
        ("jwt_claims", "token_not_allowed"),
        ("jwt_project", "token_not_allowed"),
    ],
)
def test_why_a_key_is_refused(reason: str, code: str) -> None:
    assert (errors.key_refused(reason).status, errors.key_refused(reason).code) == (401, code)


def test_a_guess_learns_nothing_from_how_it_was_wrong() -> None:
    assert errors.key_refused("malformed").body() == errors.key_refused("unknown").body()


@pytest.mark.parametrize("path", ["/" + "a" * 500, "/\x1b[2J", "/é", "/a\nb"])
def test_a_strange_path_is_not_repeated(path: str) -> None:
    assert path not in errors.unknown_route("GET", path).message


def test_who_is_sent_away_for_now_is_told_when_to_come_back() -> None:
    unavailable = errors.key_refused("unavailable")
    assert (unavailable.status, unavailable.code, unavailable.retry_after_s) == (503, "keys_unavailable", 1)
    unavailable = errors.key_refused("issuer_unavailable")
    assert (unavailable.status, unavailable.code, unavailable.retry_after_s) == (503, "issuer_unavailable", 1)
    assert refused_response(ALL["overloaded"]).headers["Retry-After"] == "1"
    assert "Retry-After" not in refused_response(ALL["malformed"]).headers


@pytest.mark.parametrize(
    "make",
    [errors.upstream_failed, errors.upstream_proxy_failed, errors.upstream_auth, errors.upstream_stalled,
     errors.shutting_down, errors.internal, errors.malformed],
)  # fmt: skip
def test_what_happened_behind_us_is_said_in_fixed_words(make: Callable[..., Any]) -> None:
    assert not inspect.signature(make).parameters
