"""Headers that an operator lets pass, from a client through the proxy to a provider and back."""

from __future__ import annotations

import json

from proxy.demo.script import Script, Send
from tests.gateway.deployment import Deployment
from tests.support import provider as plans
from tests.support.net import ask, post_chat

LIMITS = (("x-ratelimit-remaining-tokens", "7"), ("Anthropic-RateLimit-Requests-Limit", "50"), ("retry-after-ms", "9"))
ANSWER = Send(json.dumps({"object": "chat.completion", "model": "m", "choices": []}).encode())
JSON = Script(steps=(ANSWER,), headers=(("Content-Type", "application/json"), ("Set-Cookie", "a=b"), *LIMITS))


async def test_what_is_configured_passes_and_nothing_else(deployment: Deployment) -> None:
    model = deployment.plan("headers", JSON)
    headers = {
        "User-Agent": "AsyncOpenAI/Python 2.1", "OpenAI-Organization": "org-theirs", "OpenAI-Project": "proj_theirs",
        "X-Team-Name": "water", "X-Teams": "no", "Cookie": "a=b", "HTTP-Referer": "https://app.example",
    }  # fmt: skip
    response = await post_chat(deployment.url, ask(model, stream=False), key=deployment.key, headers=headers)
    (seen,) = deployment.seen(model)
    up = {name.lower(): value for name, value in seen["headers"]}
    assert len(up) == len(seen["headers"]), "each once"
    assert (up["openai-project"], up["x-gateway"]) == ("proj_ours", "canary-of-a-gateway-77")
    assert up["user-agent"] == "AsyncOpenAI/Python 2.1"
    assert (up["x-team-name"], up["http-referer"]) == ("water", "https://app.example")
    assert not up.keys() & {"x-teams", "cookie", "openai-organization"}
    assert [response.header(name) for name, _ in LIMITS] == [value for _, value in LIMITS]
    assert response.header("set-cookie") is None


async def test_by_default_the_providers_limits_do_not_pass(deployment: Deployment) -> None:
    model = deployment.plan("cancel", JSON)
    response = await deployment.post(model, stream=False)
    assert [response.header(name) for name, _ in LIMITS] == [None, None, "9"]
    (seen,) = deployment.seen(model)
    assert [value for name, value in seen["headers"] if name.lower() == "user-agent"] == ["tokenweir"]


async def test_an_error_that_echoes_a_configured_secret_is_replaced(deployment: Deployment) -> None:
    model = deployment.plan("headers", plans.error_script(400, "bad header canary-of-a-gateway-77"))
    response = await deployment.post(model)
    assert (response.status, b"canary" in response.body) == (502, False)
