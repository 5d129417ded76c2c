"""What the holder of a key reads and changes: the prices that the key pays, and the rotation of its secret."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proxy.billing.limits import Limits
from proxy.gateway.key_info.allowance import ANSWERS_MAX
from proxy.keys.narrowing import narrowed_text
from proxy.ledger.accounts.account_store import AccountStore
from tests.console.browsing import PHONE, choose, heading, see, sign_in, width
from tests.console.serving import opened
from tests.console.stand import CONFIG, SECRET, Answered, Stand
from tests.ledger.entries import a_ledger
from tests.support.tokenweir import Tokenweir

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.io

PRICED = (
    CONFIG.replace(
        'models: {"*": {provider: tera}}\n',
        """models:
  tera-large:
    providers: [{provider: tera}, {provider: mega}]
    price:
      input: 10
      output: 40
      tiers: [{above_prompt_tokens: 200000, input: 20, output: 80}]
      service_tiers: {flex: {input: 5, output: 20}}
      multipliers: {"speed:fast": 6}
  tera-small: {provider: tera, price: {input: 1, output: 4}}
  secret: {provider: tera, price: {input: 1, output: 1}}
price_rules:
  markup: {multiply: 1.2, projects: [web]}
  remote: {multiply: 3, providers: [mega]}
  routed: {stated: 1.1, models: [secret]}
""",
    ).replace(
        '{tera: {base_url: "http://127.0.0.1:1/v1"}}',
        '{tera: {base_url: "http://127.0.0.1:1/v1"}, mega: {base_url: "http://127.0.0.1:1/v1", byok: true}}',
    )
    + "key_rotation: true\n"
)
FORBIDDEN = ("tera/", "mega", "markup", "remote", "cost", "config-", "version", "multipliers", "speed_tier")


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    engine = a_ledger(tmp_path)
    made = Stand(tmp_path, engine, PRICED)
    yield made
    made.close()
    engine.dispose()


# -- prices


def test_a_key_sees_the_prices_that_it_pays(stand: Stand) -> None:
    """Before: nowhere. A customer's rules and markups were in the bills only."""
    AccountStore(stand.engine, clock=time.time).create_project(
        account_id="proj_web", name="web", organization="org_default", limits=Limits()
    )
    plain, dear = stand.key("key-1"), stand.key("key-2", project_id="proj_web")
    narrow, own_credential = stand.key("key-3", models=["tera-small"]), stand.key("key-4", byok="50%")
    with stand.clients() as clients:
        for where in ("", clients):

            def prices(key: str, query: str = "", at: str = where) -> Any:
                answered = stand("GET", f"/v1/me/prices{query}", key=key, at=at)
                assert answered.status == 200, answered
                return answered.body["data"]

            large, small = prices(plain)
            assert large == {
                "object": "price", "model": "tera-large", "usd": {"input": "10", "cached_input": "10", "output": "40"},
                "is_stated": False,
                "long_prompts": [
                    {"above_prompt_tokens": 200_000, "usd": {"input": "20", "cached_input": "20", "output": "80"}}
                ],
                "served_as": {
                    "tier:flex": {"input": "5", "cached_input": "5", "output": "20"},
                    "speed:fast": {"input": "60", "cached_input": "60", "output": "240"},
                },
                "other_usd": [{"input": "30", "cached_input": "30", "output": "120"}],
            }  # fmt: skip
            assert small["usd"]["output"] == "4"
            marked_up, _ = prices(dear)
            assert (marked_up["usd"]["input"], marked_up["other_usd"][0]["input"]) == ("12", "36")
            assert not [word for word in FORBIDDEN if word in str(prices(dear))], "what a markup is made from"
            assert [one["model"] for one in prices(narrow)] == ["tera-small"]
            (secret,) = prices(plain, "?model=secret")
            assert (secret["usd"]["output"], secret["is_stated"]) == ("1", True), "a model that no list has"
            (with_own,) = prices(own_credential)
            assert (with_own["model"], with_own["usd"]["input"], with_own["other_usd"]) == ("tera-large", "15", [])
            for model in ("tera-large", "nobody"):
                refused = stand("GET", f"/v1/me/prices?model={model}", key=narrow, at=where)
                assert (refused.status, refused.body["error"]["code"]) == (404, "model_not_found")
            assert stand("GET", "/v1/me/prices?all=1", key=plain, at=where).body["error"]["param"] == "all"
    assert stand("GET", "/v1/me/prices").body["error"]["code"] == "key_only"


def test_prices_are_counted_and_switched_off_with_the_other_data(stand: Stand, tmp_path: Path) -> None:
    secret = stand.key()
    with stand.clients() as clients:
        for _ in range(ANSWERS_MAX - 1):
            stand("GET", "/v1/me/prices?model=tera-small", key=secret, at=clients)
        assert stand("GET", "/v1/me", key=secret, at=clients).status == 200
        refused = stand("GET", "/v1/me/prices", key=secret, at=clients)
        assert (refused.status, int(refused.headers["Retry-After"]) > 0) == (429, True)
    off = Stand(tmp_path, stand.engine, PRICED + "key_info: false\n")
    with off.clients() as clients:
        assert off("GET", "/v1/me/prices", key=secret, at=clients).status == 404
    off.close()


# -- rotation


def rotate(stand: Stand, key: str, at: str = "") -> Answered:
    return stand("POST", "/v1/me/rotate", {}, key=key, at=at)


def refusal(answered: Answered) -> tuple[int, str]:
    return answered.status, answered.body["error"]["code"]


@pytest.mark.parametrize("on_clients_port", [False, True])
def test_a_holder_rotates_and_the_old_secret_has_its_grace(stand: Stand, on_clients_port: bool) -> None:
    secret = stand.key(alias="anna")
    with stand.clients() as clients:
        rotated = rotate(stand, secret, clients if on_clients_port else "")
        assert rotated.status == 200
        assert rotated.headers["Cache-Control"] == "no-store"
        new, until = rotated.body["key"], rotated.body["old_valid_until"]
        stored = stand.keys.one("key-1")
        assert stored.old_until == pytest.approx(time.time() + 86_400, abs=60)
        own = stand("GET", "/v1/me", key=secret, at=clients).body
        assert (own["id"], own["old_secret_valid_until"]) == ("key-1", until)
    assert stand.get("/key/info?key=key-1")["info"]["old_secret_valid_until"] == until
    assert [stand.get("/v1/me", key=one)["key_id"] for one in (secret, new)] == ["key-1", "key-1"]
    (act,) = stand.get("/v1/audit")["data"]
    assert (act["actor"], act["action"], act["target"], act["result"]) == ("key-1", "key.regenerate", "key-1", "done")
    assert act["origin"] == "127.0.0.1"
    assert not [one for one in (secret, new) if one in str(act)]


def test_a_thief_cannot_lock_the_owner_out_before_the_grace_has_ended(stand: Stand) -> None:
    """A second rotation would make the owner's secret, then the one before the last, invalid at once."""
    owner = stand.key()
    thief = rotate(stand, owner).body["key"]
    for secret in (thief, owner, thief):
        again = rotate(stand, secret)
        assert refusal(again) == (409, "rotated_recently")
        assert "tell the operator to block the key" in again.body["error"]["message"]
        assert 86_000 < int(again.headers["Retry-After"]) <= 86_401
    assert stand.get("/v1/me", key=owner)["may_rotate"] is True
    assert [one["action"] for one in stand.get("/v1/audit")["data"]] == ["key.regenerate"], "refusals do not fill it"
    operators = stand.post("/key/key-1/regenerate", {"grace_period": "now"})["key"]
    assert [stand("GET", "/v1/me", key=one).status for one in (owner, thief, operators)] == [401, 401, 200]
    assert stand.post("/key/key-1/regenerate", {"grace_period": "now"})["key"] != operators


def test_a_rotation_that_another_change_has_overtaken_is_refused(stand: Stand) -> None:
    """The proxy that serves it may know the key as it was half a second before."""
    secret = stand.key()
    before = stand.keys.one("key-1")
    new = {"digest": b"n" * 32, "hint": "tw-…", "old_until": time.time() + 9}
    stand.keys.rotate("key-1", digest=b"o" * 32, hint="tw-…", old_until=0.0)
    with pytest.raises(ValueError, match="cannot rotate it now"):
        stand.keys.rotate("key-1", **new, holder_digest=before.digest)
    overtaken = rotate(stand, secret)  # nothing has told this proxy of the change
    assert refusal(overtaken) == (409, "rotated_recently")
    assert stand.keys.one("key-1").digest == b"o" * 32
    stand.keys.block("key-1")
    with pytest.raises(ValueError, match="cannot rotate it now"):
        stand.keys.rotate("key-1", **new, holder_digest=b"o" * 32)
    stand.keys.unblock("key-1")
    stand.keys.rotate("key-1", **new, holder_digest=b"o" * 32)
    with pytest.raises(ValueError, match="cannot rotate it now"):
        stand.keys.rotate("key-1", digest=b"p" * 32, hint="tw-…", old_until=0.0, holder_digest=b"n" * 32)


def test_of_rotations_at_once_one_succeeds(stand: Stand) -> None:
    """Before: the others got 400 `invalid_value`, as if the request were wrong."""
    secret = stand.key()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: rotate(stand, secret), range(4)))
    assert sorted(one.status for one in answers) == [200, 409, 409, 409]
    assert {refusal(one)[1] for one in answers if one.status == 409} == {"rotated_recently"}


def test_who_may_not_rotate(stand: Stand, tmp_path: Path) -> None:
    narrowable = stand.post("/key/generate", {"key_alias": "anna", "narrowable": True})["key"]
    blocked = stand.key("key-2")
    stand.post("/key/block", {"key": "key-2"})
    with stand.clients() as clients:
        narrowed = rotate(stand, narrowed_text(narrowable, ["usd=5"]), clients)
        assert refusal(narrowed) == (403, "rotation_not_allowed")
        assert "that it was made from" in narrowed.body["error"]["message"]
        assert refusal(rotate(stand, blocked, clients)) == (401, "blocked_api_key")
        assert rotate(stand, "tw-nobody", clients).status == 401
        assert refusal(rotate(stand, SECRET)) == (403, "key_only")
        for body in ({"grace_period": "now"}, b""):
            assert stand("POST", "/v1/me/rotate", body, key=narrowable, at=clients).status == 400
        again = rotate(stand, narrowable, clients).body["key"]
        assert narrowed_text(again, ["usd=5"]), "the new one is narrowable, too"
    off = Stand(tmp_path, stand.engine)
    with off.clients() as clients:
        for where in ("", clients):
            assert refusal(rotate(off, again, where)) == (403, "rotation_not_allowed")
    assert off.get("/v1/me", key=again)["may_rotate"] is False
    off.close()


@pytest.mark.thorough
def test_every_process_of_a_port_rotates_and_knows_the_new_secret(tokenweir: Callable[..., Tokenweir]) -> None:
    one = tokenweir(options=("--workers", "2"), key_rotation=True)

    def ask(secret: str, path: str, body: Any = None) -> tuple[int, Any]:
        response = opened(one.url, path, secret, body)
        return response.status, json.loads(response.read())

    for number in range(4):  # whichever process answers
        secret = one.key(f"key {number}")
        status, rotated = ask(secret, "/v1/me/rotate", {})
        assert status == 200, rotated
        assert ask(rotated["key"], "/v1/me/rotate", {})[0] == 409
        assert {ask(rotated["key"], "/v1/me")[0] for _ in range(6)} == {200}
        status, prices = ask(secret, "/v1/me/prices?model=scripted-model")
        assert (status, prices["data"][0]["usd"]["output"]) == (200, "0.41")
    assert one.stop() == 0


def test_a_holder_sees_prices_and_rotates_in_the_console(stand: Stand, page: Page) -> None:
    secret = stand.key(alias="anna")
    sign_in(page, stand.url, secret)
    told = see(page, "prices")
    for words in (
        "2 models",
        "tera-large",
        "$40.00",
        "above 200,000 prompt tokens",
        "speed fast",
        "if another provider answers",
    ):
        assert words in told
    assert width(page) == PHONE["width"]
    assert "2 models" not in see(page, "prices?q=SMALL")
    see(page, "keys")
    page.get_by_role("button", name="Rotate the secret").click()
    page.get_by_role("button", name="Create secret").click()
    new = page.locator("#secret").input_value()
    assert stand.get("/v1/me", key=new)["key_id"] == "key-1"
    page.get_by_role("button", name="Done", exact=True).click()
    page.get_by_text("Old secret valid until").wait_for()
    page.reload()
    heading(page, "My key")
    page.get_by_role("button", name="Rotate the secret").click()
    page.get_by_role("button", name="Create secret").click()
    page.get_by_text("The secret of this key was changed").wait_for()
    page.keyboard.press("Escape")
    choose(page, "Signed in as", "Sign out")
    page.wait_for_selector("#credential:focus")
