"""Who used a request, as official SDKs name it, each in its own way; and SDKs with a credential of their own.

Invariant: the ledger has what the SDK was told, and the provider sees neither our key nor any header for the proxy.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.demo.script import Script, Shape, json_script
from tests.metering.dialects.gemini import counts, text
from tests.real.sdks.answers import ANTHROPIC, OPENAI
from tests.real.sdks.programs import Report, node, run
from tests.real.sdks.stand import Stand
from tests.support.provider import error_script

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

OWN_KEY = "sk-of-the-client-itself"
ALICE, RED = {"end_user": "alice"}, {"tag:team": "red"}
USERS = {
    "openai/users-chat": ALICE | RED,
    "openai/users-responses": ALICE,
    "openai/users-litellm": ALICE | RED | {"session": "s7", "run": "r1", "tag:trace_id": "r1"},
    "openai/users-helicone": ALICE | RED | {"session": "s7"},
    "openai/users-portkey": ALICE | RED | {"run": "r1"},
    "openai/users-baggage": {"end_user": "alice b", "session": "s7"} | RED,
    "anthropic/users-messages": ALICE,
    "gemini/users-gemini": ALICE | RED,
    "vertex/users-vertex": RED,
}
HEADERS_FOR_US = ("x-tokenweir", "helicone", "x-portkey", "baggage", "x-gemini-api-privileged-user-id")
# Model → header with the credential at the provider.
OWN = {
    "openai/own-chat": ("authorization", f"Bearer {OWN_KEY}"),
    "openai/own-chat-extra": ("authorization", f"Bearer {OWN_KEY}"),
    "anthropic/own-messages": ("authorization", f"Bearer {OWN_KEY}"),
    "anthropic/own-token": ("authorization", f"Bearer {OWN_KEY}"),
    "anthropic/own-messages-extra": ("x-api-key", OWN_KEY),
}
_GEMINI = json_script(text("High.", finish="STOP", used=counts(9, 5)))
PLANS: dict[str, Script | Shape] = {
    "openai": OPENAI["plain"].plan, "anthropic": ANTHROPIC["plain"].plan, "gemini": _GEMINI, "vertex": _GEMINI,
}  # fmt: skip


@pytest.fixture(scope="module")
def users(stand: Stand) -> dict[str, Report]:
    return answered(stand, "users", dict.fromkeys(USERS))


@pytest.fixture(scope="module")
def own(stand: Stand) -> dict[str, Report]:
    refused = error_script(401, "Incorrect API key provided")
    return answered(stand, "own_keys", {**dict.fromkeys(OWN), "openai/own-refused": refused})


def answered(stand: Stand, program: str, plans: dict[str, Script | None]) -> dict[str, Report]:
    """What a program of these models reports; each is a scenario. None: its family's plain answer."""
    for model, plan in plans.items():
        responses = OPENAI["responses"].plan if model.endswith("responses") else None
        stand.plan(model, plan or responses or PLANS[model.partition("/")[0]])
    reports = run(node(program), {**stand.environment(program), "OWN_KEY": OWN_KEY, "MODELS": ""})
    assert reports.keys() == plans.keys()
    return reports


def seen(stand: Stand, model: str) -> dict[str, str]:
    """The headers of the model's only request, as the provider saw them."""
    (found,) = stand.seen(model)
    assert not [key for key in stand.keys.values() if key in json.dumps(found)]
    return {name.lower(): value for name, value in found["headers"]}


@pytest.mark.parametrize("model", USERS)
def test_who_an_sdk_names_is_in_the_ledger(stand: Stand, users: dict[str, Report], model: str) -> None:
    assert "error" not in users[model], users[model]
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert stand.tokenweir.dimensions(entry) == USERS[model]
    assert not [name for name in seen(stand, model) if name.startswith(HEADERS_FOR_US)]


@pytest.mark.parametrize("model", OWN)
def test_the_credential_of_the_client_itself_is_used(stand: Stand, own: dict[str, Report], model: str) -> None:
    assert "error" not in own[model], own[model]
    credentials = {name: value for name, value in seen(stand, model).items() if name in ("authorization", "x-api-key")}
    assert credentials == dict([OWN[model]])
    entry: dict[str, Any] = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert (float(entry["charge_usd"]), float(entry["cost_usd"])) == (0, 0)
    assert entry["details"]["byok"]["terms"] == "nothing"


def test_a_wrong_credential_of_the_client_is_its_own_error(stand: Stand, own: dict[str, Report]) -> None:
    error = own["openai/own-refused"]["error"]
    assert (error["type"], error["status"]) == ("AuthenticationError", 401)
    assert "Incorrect API key provided" in error["message"]
