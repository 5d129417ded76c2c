"""Requests that the proxy itself refuses: who was refused, why, and by which id the client knows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.http.refused_requests import RefusedRequest
from tests.console.serving import SECRET, answer, opened
from tests.console.stand import Stand
from tests.support.tokenweir import Tokenweir


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_why_am_i_refused(tokenweir: Callable[..., Tokenweir], monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Before: nowhere. A client had a status and a message, the operator a counter."""
    monkeypatch.setenv("ADMIN", SECRET)
    one = tokenweir(admin={"port": 0, "secret": "${ADMIN}"}, options=("--workers", str(workers)))
    spent = one.key("spent", "--budget", "0.000000001")
    narrow, slow = one.key("narrow", "--model", "m"), one.key("slow", "--rpm", "1")
    blocked = one.key("blocked")
    one.change("keys", "block", "blocked")
    said: dict[str, Any] = {}

    def ask(name: str, key: str, model: str, **more: Any) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": "a word that is nobody's"}], **more}
        response = opened(one.url, "/v1/chat/completions", key, body)
        text = response.read()
        said[name] = (response.status, response.headers["x-request-id"], json.loads(text).get("error"))

    ask("budget", spent, "scripted-model")
    ask("not allowed", narrow, "another-model")
    ask("blocked", blocked, "scripted-model")
    ask("unknown", "tw-nobody", "scripted-model")
    ask("invalid", spent, "scripted-model", n="five")
    ask("first", slow, "scripted-model")
    ask("rate", slow, "scripted-model")
    status, page = answer(one.console_url, "/v1/refusals", SECRET)
    assert status == 200
    by_id = {line["id"]: line for line in page["data"]}
    names = {
        "budget": "spent",
        "not allowed": "narrow",
        "blocked": "blocked",
        "unknown": None,
        "invalid": "spent",
        "rate": "slow",
    }
    for name, alias in names.items():
        status, request_id, error = said[name]
        line = by_id[request_id]
        assert (line["status"], line["key_alias"], line["message"]) == (status, alias, error["message"]), name
    assert said["first"][1] not in by_id
    assert by_id[said["budget"][1]]["limit"] == by_id[said["rate"][1]]["limit"] == "this key"
    assert "nobody's" not in str(page)
    own = answer(one.console_url, "/v1/refusals", spent)[1]["data"]
    assert {line["key_alias"] for line in own} == {"spent"}
    assert one.stop() == 0


def refused(number: int, **differences: Any) -> RefusedRequest:
    fields = {
        "id": f"0{number}", "at": float(number), "status": 402, "code": "insufficient_quota",
        "kind": "insufficient_quota", "message": "No.", "key_id": "key-1", "key_alias": "anna", "endpoint": "/v1/x",
        "model": "tera-large", "limit": "this key",
    }  # fmt: skip
    return RefusedRequest(**{**fields, **differences})


@pytest.mark.io
def test_refusals_are_filtered_and_paged(stand: Stand) -> None:
    stand.key("key-1", alias="anna")
    stand.inside.refusals = [
        refused(4, key_id=None, key_alias=None, status=401, code="invalid_api_key", limit=None),
        refused(3, key_id="key-2", key_alias="bert", model="small", limit="the limit 'per-user'"),
        refused(2, status=429, code="rate_limit_exceeded"),
        refused(1),
    ]

    def found(query: str) -> list[str]:
        return [one["id"] for one in stand.get(f"/v1/refusals?{query}")["data"]]

    assert found("") == ["04", "03", "02", "01"]
    filters = {
        "q=02": ["02"], "q=ANN": ["02", "01"], "q=per-us": ["03"], "q=SMALL": ["03"], "key_id=key-2": ["03"],
        "project_id=proj_default": ["02", "01"], "organization_id=org_default&status=429": ["02"],
        "model=small": ["03"], "code=invalid_api_key": ["04"], "start_time=2&end_time=4": ["03", "02"],
    }  # fmt: skip
    assert {query: found(query) for query in filters} == filters
    page = stand.get("/v1/refusals?limit=3")
    assert (page["has_more"], found(f"after={page['next_after']}")) == (True, ["01"])
    assert stand.get("/v1/refusals?q=01")["data"][0]["project"] == "default"
    assert stand("GET", "/v1/refusals?status=200").status == 400
