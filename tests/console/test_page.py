"""The console's page: its files as they are served, and the page itself in a real browser, as people use it."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from proxy.billing.correction import CorrectionRequest
from proxy.billing.limits import Limits
from proxy.billing.money import usd_text
from proxy.billing.reservation import CounterState
from proxy.console.page_routes import FOLDER, page_files
from proxy.demo.script import Shape
from proxy.ledger.accounts.account_store import AccountStore
from tests.console.browsing import PHONE, choose, heading, see, sign_in, sign_out, until, width
from tests.console.entries import entry, rerated
from tests.console.furnished import KEYS, furnish, running
from tests.console.serving import opened
from tests.console.stand import CONFIG, READER, SECRET, WORKER, Stand
from tests.ledger.entries import a_ledger
from tests.ledger.priced_entries import settle
from tests.support import javascript
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.support.net import free_port
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.io

VIEWS = {"overview": "Overview", "usage": "Usage", "requests": "Requests", "live": "Live",
         "customers": "Customers", "keys": "Keys", "budgets": "Budgets", "models": "Models & prices",
         "providers": "Providers", "statements": "Statements", "delivery": "Delivery", "audit": "Audit"}  # fmt: skip
VENDORED = {
    "hooks.js": "f1c7723478f50f8e0f8cf257779dabbbf1cd608846971b22625704f3c2b9beb2",
    "htm.js": "c6c09201956c012b99297899973f6213205464eaf914de9e25de5057c7a5ddd1",
    "preact.js": "96f1cd377adfe5c2c9b1af66e4733187db19cb270f4a5998674f30a92b953d7d",
}


# -- files -------------------------------------------------------------------------------------------------------


def test_a_file_says_what_it_is_and_is_asked_for_once(stand: Stand) -> None:
    types = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for path, file in page_files().items():
        answered = stand("GET", path, key=None)
        assert (answered.status, answered.body) == (200, file.read_bytes()), path
        assert answered.headers["Content-Type"] == f"{types[file.suffix[1:]]}; charset=utf-8"
        assert (answered.headers["Cache-Control"], answered.headers["X-Frame-Options"]) == ("no-cache", "DENY")
        policy = answered.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        again = opened(stand.url, path, SECRET, **{"If-None-Match": answered.headers["ETag"]})
        assert (again.status, again.read()) == (304, b"")
        small = opened(stand.url, path, SECRET, **{"Accept-Encoding": "br, gzip"})
        assert (small.headers["Content-Encoding"], gzip.decompress(small.read())) == ("gzip", file.read_bytes())
    assert stand("GET", "/page/static.py", key=None).status == 404
    assert stand("GET", "/page/vendor/LICENSE-htm.txt", key=None).status == 404
    assert stand("GET", "/page/../static.py", key=None).status == 404


def test_the_page_asks_nobody_else_and_makes_no_markup() -> None:
    for file in (one for one in page_files().values() if one.parent == FOLDER):
        text = file.read_text("utf-8")
        elsewhere = set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file.name
        assert len(text.splitlines()) <= 400
    preloaded = re.findall(r'rel="modulepreload" href="([^"]+)"', (FOLDER / "index.html").read_text())
    assert {*preloaded, "page/app.js"} == {one[1:] for one in page_files() if one.endswith(".js")}, "all in one turn"
    read = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in FOLDER.glob("vendor/*.js")}
    assert read == VENDORED, "the files of others are those of their packages, as their heads say"


# -- the page ----------------------------------------------------------------------------------------------------


def test_a_button_leads_through_the_identity_provider_and_back(page: Page, tmp_path: Path) -> None:
    """With the page's own policy, and a browser's rules for cookies."""
    provider, engine = IdentityProvider(), a_ledger(tmp_path)
    provider.claims = {"sub": "user-1", "email": "ann@example.com", "email_verified": True, "groups": "ops"}
    oidc = {"issuer": provider.url, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "label": "Example SSO",
            "role_claim": "groups", "roles": {"ops": "operate"}}  # fmt: skip
    port = free_port()
    admin = f"  port: {port}\n  public_url: http://127.0.0.1:{port}\n  oidc: {json.dumps(oidc)}\n"
    stand = Stand(tmp_path, engine, CONFIG.replace("  port: 0\n", admin) + "allow_literal_secrets: true\n")
    try:
        page.goto(stand.url)
        button = page.get_by_role("link", name="Sign in with Example SSO")
        button.click()
        page.get_by_text("ann@example.com (operate)").wait_for()
        assert page.url.startswith(f"{stand.url}/")
        assert "code=" not in page.url
        sign_out(page)
        provider.claims["groups"] = "others"
        button.click()
        heading(page, "Not signed in")
        page.get_by_role("link", name="Back to the sign-in").click()
        page.wait_for_selector("#credential:focus")
        assert width(page) <= PHONE["width"]
    finally:
        stand.close()
        provider.close()
        engine.dispose()


def test_who_is_neither_gets_a_word_and_no_further(stand: Stand, page: Page) -> None:
    page.goto(stand.url)
    page.wait_for_selector("#credential:focus")
    page.keyboard.type("a-secret-that-nobody-has")
    page.keyboard.press("Enter")
    page.get_by_text("neither an operator's secret nor an active key").wait_for()
    assert page.locator("nav").count() == 0
    sign_in(page, stand.url)
    page.reload()
    heading(page, "Overview")
    assert page.evaluate("document.cookie + sessionStorage.length") == "0", "no script can read the session"
    second = page.context.new_page()
    second.goto(stand.url)
    heading(second, "Overview")
    sign_out(page)
    heading(page, "Sign in")
    assert page.evaluate("sessionStorage.length + Object.keys(localStorage).length") == 0
    second.reload()
    heading(second, "Sign in")
    second.close()


def test_who_may_only_read_sees_all_and_no_button_that_changes(stand: Stand, page: Page) -> None:
    furnish(stand)
    sign_in(page, stand.url, READER)
    assert "ann@example.com (read)" in page.inner_text("header")
    assert "support-bot-production" in see(page, "requests")
    for view in ("keys", "customers", "keys/key-search", "customers/org_acme"):
        told = see(page, view)
        assert "Actions" not in told
        assert page.get_by_role("button", name=re.compile("New|Actions")).count() == 0, view


def test_no_view_is_wider_than_a_phone(stand: Stand, page: Page) -> None:
    """With long names, all outcomes, and every budget there is; by keyboard alone, a chart says its values."""
    furnish(stand)
    sign_in(page, stand.url)
    for view, title in VIEWS.items():
        see(page, view)
        heading(page, title)
        assert width(page) == PHONE["width"], view
    assert "By usage date: a correction counts on the day of its request." in see(page, "usage")
    assert "Spend is by usage date" in see(page, "budgets")
    told = see(page, "live")
    assert "no heartbeat for 14" in told
    assert "Other machines run more streams than this page can show" in told
    corrected = next(one for one in stand.get("/v1/exchanges?limit=50")["data"] if one["adjustments"])
    assert "goodwill" in see(page, f"requests/{corrected['id']}")
    assert width(page) == PHONE["width"]
    assert "No match in 30 days" in see(page, "requests?model=nobody")
    see(page, "usage")
    page.focus(".chart")
    page.keyboard.press("Home")
    assert re.search(r": \$0\.0\d+ \(", page.inner_text("#status"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_barrier(stand: Stand, browser: Browser, scheme: Literal["light", "dark"]) -> None:
    """By the rules of axe-core, in three widths."""
    tools = javascript.installed()
    if tools is None:
        pytest.skip("npm is missing, or cannot install axe-core")
    axe = (tools.parent / "axe-core" / "axe.min.js").read_text()
    secrets = furnish(stand)
    corrected = next(one for one in stand.get("/v1/exchanges?limit=50")["data"] if one["adjustments"])
    views = (*VIEWS, f"requests/{corrected['id']}", "keys/key-search", "customers/org_acme", "requests?outcome=served",
             "requests?show=rejected", "usage?compare=1&by=key", "budgets?show=rules",
             "budgets?show=grants", "models/tera-large", "providers/tera")  # fmt: skip
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    wrong = []
    for secret, seen in ((SECRET, (*views, "adjust")), (secrets["key-search"], ("prices", "keys"))):
        sign_in(page, stand.url, secret)
        page.evaluate(f"{axe}; 0")
        for view in seen:
            see(page, view if view != "adjust" else f"requests/{corrected['id']}")
            if view == "adjust":
                page.get_by_role("button", name="Adjust").click()
            if view == "keys" and secret == SECRET:
                page.get_by_label("Select this page").check()
            for wide in (1_440, 768, 390):
                page.set_viewport_size({"width": wide, "height": 900})
                found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
                wrong += [(view, wide, one["id"], one["nodes"][0]["html"]) for one in found]
        page.keyboard.press("Escape")
        sign_out(page)
    context.close()
    assert wrong == []


def test_names_that_are_markup_are_text(stand: Stand, page: Page) -> None:
    """In every page; the policy would refuse their scripts, too."""
    bad = "<img src=x onerror=alert(1)>"
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    stand.post("/account/new", {"kind": "organization", "name": bad})
    stand.post("/account/new", {"kind": "project", "name": f"p{bad}", "organization": bad})
    key = stand.post("/key/generate", {"key_alias": f"k{bad}", "team_id": f"p{bad}", "tags": [bad], "max_budget": 1})
    stand.post("/limit/new", {"name": bad, "split_by": ["end_user"], "rpm_limit": 5})
    stand.post("/grant/add", {"name": bad, "key": key["token"], "usd": 1})
    one = replace(entry(1), key_id=key["token"], key_alias=f"k{bad}", model=f"m{bad}", provider=f"v{bad}")
    settle(stand.engine, one, node=None)
    stand.inside.streams = [replace(running(1), model=bad, key_alias=bad)]
    sign_in(page, stand.url)
    quoted = quote(bad)
    views = (*VIEWS, f"requests/{one.exchange_id}", f"requests?model={quoted}&zzz={quoted}", f"keys/{key['token']}",
             "usage?by=key", "usage?by=organization", f"models/m{quoted}", f"providers/v{quoted}", quoted,
             "budgets?show=rules", "budgets?show=grants", f"keys?q={quoted}")  # fmt: skip
    shown = 0
    for view in views:
        page.evaluate(f"location.hash = {json.dumps(f'#/{view}')}")
        until(page, "!document.querySelector('.loading, .busy')")
        assert page.locator("main img, main svg[onload], main script").count() == 0, view
        shown += bad in page.inner_text("main")
    assert shown >= 12


def test_every_key_can_be_found_among_many(stand: Stand, page: Page) -> None:
    """Before: keys beyond the newest 1,000 did not exist, and a page of 1,143 keys was 91,332 pixels high."""
    stand.key("the-first", alias="the first")
    for number in range(119):
        stand.keys.create(
            key_id=f"key-{number:04}", digest=bytes([number]) * 32, hint="tw-…", alias=f"many {number:04}",
            models=None, expires_at=None,
        )  # fmt: skip
    sign_in(page, stand.url)
    page.set_viewport_size({"width": 1_400, "height": 900})
    assert "120 keys" in see(page, "keys")
    assert page.locator("tbody tr").count() == 50
    assert int(page.evaluate("document.documentElement.scrollHeight")) < 3_000
    assert int(page.evaluate("document.querySelectorAll('*').length")) < 2_000
    page.get_by_role("button", name="Next").click()
    page.get_by_text("Page 2 of 3").wait_for()
    assert "the first" in see(page, "keys?q=THE%20FIRST")
    page.get_by_role("button", name="Name").click()
    until(page, "!!document.querySelector('th[aria-sort]')?.textContent.startsWith('Name')")
    press = page.keyboard.press
    press("Control+k")
    page.locator("[role=combobox]:focus").wait_for()
    page.keyboard.type("many 0042")
    page.get_by_role("option", name="many 0042").first.wait_for()
    until(page, "document.querySelector('[aria-selected=true]')?.textContent.includes('many 0042')")
    press("Enter")
    page.get_by_text("many 0042").first.wait_for()
    heading(page, "Key")


def test_keys_are_blocked_in_bulk_and_who_fails_is_named(stand: Stand, page: Page) -> None:
    for number in range(60):
        stand.keys.create(
            key_id=f"key-{number:02}", digest=bytes([number]) * 32, hint="tw-…", alias=f"many {number:02}",
            models=None, expires_at=None,
        )  # fmt: skip
    stand.key("key-other", alias="the other")
    sign_in(page, stand.url)
    see(page, "keys?q=many&sort=alias")
    for name in ("many 00", "many 01"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("button", name="Block 2 keys").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("many 00, many 01. Their requests are rejected").wait_for()
    stand.post("/key/delete", {"keys": ["key-01"]})
    dialog.get_by_role("button", name="Block 2 keys").click()
    page.get_by_text("1 key blocked.").wait_for()
    dialog.get_by_text("many 01: the key key-01 is revoked").wait_for()
    assert width(page) == PHONE["width"]
    dialog.get_by_role("button", name="Close").click()
    page.get_by_label("Select this page").check()
    page.get_by_role("button", name="Select all 59 keys").click()
    page.get_by_role("button", name="Block 59 keys").click()
    dialog.get_by_text("1 other key is blocked or revoked already.").wait_for()
    dialog.get_by_role("button", name="Block 58 keys").click()
    page.get_by_text("58 keys blocked.").wait_for()
    assert stand.get("/key/list?status=blocked")["total_count"] == 59
    page.locator(".toast", has_text="58 keys blocked.").get_by_role("button", name="Undo").click()
    page.get_by_text("58 keys unblocked.").wait_for()
    assert [one["token"] for one in stand.get("/key/list?status=blocked")["keys"]] == ["key-00"]
    assert stand.get("/key/list?q=other")["keys"][0]["blocked"] is False


def test_every_customer_can_be_found_among_many(stand: Stand, page: Page) -> None:
    """Before: the page read a thousand accounts, ten requests of them, and knew no further one."""
    accounts = AccountStore(stand.engine, clock=time.time)
    for number in range(101):
        accounts.create_organization(account_id=f"org_{number:03}", name=f"company {number:03}", limits=Limits())
        accounts.create_project(
            account_id=f"proj_{number:03}", name=f"web {number:03}", organization=f"org_{number:03}", limits=Limits()
        )
    settle(stand.engine, entry(1), node=None)
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url))
    sign_in(page, stand.url)
    page.set_viewport_size({"width": 1_400, "height": 900})
    see(page, "keys")
    page.locator("input[name=customer]").fill("company 099")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Customer: company 099").wait_for()
    assert "customer=org_099" in page.url
    page.locator("input[name=project]").fill("web 09")
    page.keyboard.press("Enter")
    page.get_by_text("Several match “web 09”").wait_for()
    until(page, "document.querySelectorAll('#found-project option').length === 10")
    page.locator("input[name=project]").fill("proj_098")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Project: web 098 (company 098)").wait_for()
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name", exact=True).fill("anna")
    page.locator("dialog [name=team_id]").fill("proj_100")
    page.get_by_role("button", name="Create key").click()
    page.locator("#secret").wait_for()
    page.keyboard.press("Escape")
    assert stand.get("/key/list")["keys"][0]["team_id"] == "proj_100"
    page.keyboard.press("Control+k")
    page.locator("[role=combobox]:focus").wait_for()
    page.keyboard.type("web 097")
    page.get_by_role("option", name="web 097 (company 097)").click()
    page.get_by_text("Project of").wait_for()
    assert not [url for url in asked if "account/list" in url and "page=2" in url]


def test_a_batch_is_one_row_that_opens(stand: Stand, page: Page) -> None:
    lines = [replace(entry(number), details={"batch_id": "batch_7", "custom_id": str(number)}) for number in range(25)]
    batch = replace(entry(25), charge_nusd=0, details={"batch_id": "batch_7", "batch": {"lines": 25}})
    settle(stand.engine, entry(26), *lines, batch, node=None)
    sign_in(page, stand.url)
    page.set_viewport_size({"width": 1_400, "height": 900})
    told = see(page, "requests")
    assert page.locator("tbody tr").count() == 2
    assert "25 requests shown" in told
    total = sum(Decimal(one["charge_usd"]) for one in stand.get("/v1/exchanges?batch_id=batch_7")["data"])
    shown = page.locator("tbody tr").nth(1).locator("[data-exact]").first.get_attribute("data-exact")
    assert shown is not None
    assert usd(shown) == total
    page.locator("tbody tr").nth(1).locator("a").click()
    until(page, "document.querySelectorAll('tbody tr').length === 26")


def test_a_file_has_the_rows_that_are_shown_with_all_digits(stand: Stand, page: Page) -> None:
    models = ("tera-large", "=1+1", 'a "b", c')
    entries = [replace(entry(number), model=models[number % 3], charge_nusd=1_234_567 + number) for number in range(6)]
    settle(stand.engine, *entries, node=None)
    sign_in(page, stand.url)
    see(page, "usage?metric=requests&compare=1")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download CSV").click()
    rows = list(csv.DictReader(saved.value.path().read_text().splitlines()))
    shown = page.locator("main > .view > div > table tbody td.lead").all_inner_texts()
    assert [row["Model"].removeprefix("'") for row in rows] == shown
    assert {row["Model"]: row["Revenue (USD)"] for row in rows}["'=1+1"] == "0.002469139"
    assert {row["Requests"] for row in rows} == {"2"}


def test_a_row_opens_beside_the_list(stand: Stand, page: Page) -> None:
    settle(stand.engine, *(entry(number) for number in range(5)), node=None)
    sign_in(page, stand.url)
    page.set_viewport_size({"width": 1_400, "height": 900})
    see(page, "requests")
    page.locator("tbody tr").nth(1).locator("td").nth(4).click()
    panel = page.get_by_role("complementary", name="Request")
    panel.get_by_role("heading", name="Receipt").wait_for()
    first = page.locator("tr.chosen a").get_attribute("href")
    page.keyboard.press("j")
    until(page, f"document.querySelector('tr.chosen a').getAttribute('href') !== {json.dumps(first)}")
    panel.get_by_role("heading", name="Receipt").wait_for()
    page.reload()
    panel.get_by_role("heading", name="Receipt").wait_for()
    page.keyboard.press("Escape")
    panel.wait_for(state="detached")
    page.keyboard.press("k")
    assert page.locator("tbody tr").count() == 5


def test_an_unknown_cost_and_an_unpriced_request_are_no_0(stand: Stand, page: Page) -> None:
    """Before: a cost of $0.0002 for 463 requests of which one has a known cost, a margin from that, and a charge of
    $0 for six requests that nobody was charged for."""
    first, *lacking = (replace(entry(number), charge_nusd=688_312, cost_nusd=None) for number in range(463))
    nothing = [replace(entry(number), model="alpha", charge_nusd=None, cost_nusd=None) for number in range(463, 486)]
    unpriced, refused = nothing[:6], [replace(one, charge_nusd=0, cost_nusd=0) for one in nothing[6:]]
    settle(stand.engine, replace(first, cost_nusd=200_000), *lacking, *unpriced, *refused, node=None)
    sign_in(page, stand.url)
    page.set_viewport_size({"width": 1_400, "height": 900})
    told = re.sub(r"\s+", " ", see(page, "usage"))
    for words in (
        "Provider cost ≥ $0.0002 unknown for 468 requests ($0.318 charged)",
        "Margin $0.000488 71 % of the charge with a known cost", "Unpriced 6 requests without a price, not charged",
        "tera-large $0.32 100 % ≥ $0.00020 462 463 ", "alpha $0 6 0 % — 6 23 ",
    ):  # fmt: skip
        assert words in told
    assert see(page, "requests?model=alpha").count("no price") == 6


def test_a_corrected_exchange_is_one_sum(stand: Stand, page: Page) -> None:
    """Before: "No charge: the model had no price." under a charge, and a card that ended with the charge before."""
    unpriced, priced = entry(0, price=None), entry(1)
    settle(stand.engine, unpriced, priced, node=None)
    at_work = rerated(stand.engine)
    at_work.adjust(priced.exchange_id, CorrectionRequest(charge_nusd=0), "goodwill")
    sign_in(page, stand.url)
    for one, words in (
        (unpriced, ["1 change", "no price → $0.26"]),
        (priced, ["2 changes", "goodwill\nby root, ", "$0.13 → $0.26 per million"]),
    ):  # fmt: skip
        told = see(page, f"requests/{one.exchange_id}")
        assert [word for word in (*words, "Repriced\nby root, ") if word not in told] == []
        assert "No price for this model" not in told
        (head, foot) = (page.inner_text(of) for of in (".big", "tfoot td"))
        assert head == foot
        amounts = page.locator("tbody tr:has-text('by root') td:last-child").all_inner_texts()
        ended = page.locator("tbody tr:has-text('Charge when it ended') td:last-child").inner_text()
        assert sum(map(usd, [ended, *amounts])) == usd(head)
        page.set_viewport_size({"width": 1_280, "height": 900})
        assert page.evaluate("[...document.querySelectorAll('.card')].every(one => one.scrollWidth <= one.clientWidth)")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        assert width(page) == PHONE["width"]


def test_a_request_is_adjusted_after_a_preview_and_its_receipt_is_saved(stand: Stand, page: Page) -> None:
    one = entry(1)
    settle(stand.engine, one, node=None)
    sign_in(page, stand.url, WORKER)
    see(page, f"requests/{one.exchange_id}")
    assert page.get_by_role("button", name="Adjust").count() == 0
    sign_out(page)
    sign_in(page, stand.url)
    see(page, f"requests/{one.exchange_id}")
    page.get_by_role("button", name="Adjust").click()
    page.get_by_label("Charge, USD").fill("all of it")
    page.get_by_label("Reason", exact=True).fill("goodwill: cut by our own deployment")
    page.keyboard.press("Enter")
    page.locator("dialog .notice").wait_for()
    assert page.locator("[aria-invalid]").get_attribute("name") == "charge_usd"
    page.get_by_label("Charge, USD").fill("0")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text(f"Charge: from ${usd_text(one.charge_nusd)} to $0").wait_for()
    assert stand.get(f"/v1/exchanges/{one.exchange_id}")["adjustments"] == []
    assert width(page) == PHONE["width"]
    page.get_by_role("dialog").get_by_role("button", name="Adjust").click()
    page.get_by_text("by admin, ").wait_for()
    assert page.inner_text(".big") == page.inner_text("tfoot td") == "$0"
    page.get_by_role("button", name="Adjust").click()
    page.get_by_label("Output", exact=True).fill("20")
    page.get_by_label("Reason", exact=True).fill("counted twice")
    page.keyboard.press("Enter")
    page.get_by_text("Charge: an operator has set $0. It is calculated anew.").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Adjust").click()
    page.get_by_text("2 changes").wait_for()
    page.get_by_role("button", name="Receipt with proof").click()
    page.get_by_text("is not closed: a receipt is of a closed month").wait_for()


def usd(text: str) -> Decimal:
    return Decimal(text.replace("−", "-").replace("$", "") if text != "Not charged" else 0)


def test_a_keys_owner_sees_what_is_theirs(stand: Stand, page: Page) -> None:
    secrets = furnish(stand)
    sign_in(page, stand.url, secrets["key-search"])
    told = " ".join(
        see(page, view) for view in ("usage", "requests", "live", "keys", "budgets", "prices", "statements")
    )
    page.get_by_role("button", name="Pages").click()
    assert page.locator("nav div a").all_inner_texts() == [
        "Usage",
        "Requests",
        "Live",
        "My key",
        "Budgets",
        "Prices",
        "Statements",
    ]
    page.keyboard.press("Escape")
    assert all(alias not in told for key_id, (alias, _) in KEYS.items() if key_id != "key-search")
    assert page.get_by_role("button", name="New key").count() == 0
    assert "Cost" not in told
    stand.post("/key/block", {"key": "key-search"})
    page.evaluate("location.hash = '#/requests'")
    page.get_by_text("You were signed out").wait_for()


def test_keys_are_made_changed_blocked_and_revoked_by_keyboard(stand: Stand, page: Page) -> None:
    sign_in(page, stand.url)
    assert "No keys yet" in see(page, "keys")
    press = page.keyboard.press
    page.get_by_role("button", name="New key").focus()
    press("Enter")
    page.locator("dialog input:focus").wait_for()
    page.keyboard.type("anna")
    page.get_by_label("Budget period").select_option("30d")
    page.get_by_label("Budget, USD").fill("99999999999999")
    press("Enter")
    page.locator("dialog .notice").wait_for()
    assert page.locator("[aria-invalid]").get_attribute("name") == "max_budget"
    assert page.inner_text("dialog .notice") == "Budget, USD: must be a number from 0 to 1,000,000 or empty."
    page.get_by_label("Budget, USD").fill("2.5")
    press("Enter")
    secret = page.locator("#secret").input_value()
    press("Escape")
    (made,) = stand.get("/key/list")["keys"]
    assert (made["key_alias"], made["max_budget"], made["budget_duration"]) == ("anna", 2.5, "30d")
    assert stand.get("/v1/me", key=secret)["key_alias"] == "anna"
    page.locator("#secret").wait_for(state="detached")
    assert secret not in page.content()
    for budget, window in (("", None), ("7", None)):  # what the form says is what holds, changed or not
        choose(page, "Actions for anna", "Edit")
        page.get_by_label("Budget, USD").fill(budget)
        press("Enter")
        page.get_by_role("dialog").wait_for(state="detached")
        (changed,) = stand.get("/key/list")["keys"]
        assert (changed["max_budget"], changed["budget_duration"]) == (float(budget) if budget else None, window)
        assert changed["expires"] == made["expires"]
    choose(page, "Actions for anna", "Block")
    page.get_by_text("anna is blocked").wait_for()
    assert stand("GET", "/v1/me", key=secret).status == 401
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("anna is unblocked").wait_for()
    assert stand("GET", "/v1/me", key=secret).status == 200
    choose(page, "Actions for anna", "Revoke")
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("button", name="Cancel").evaluate("one => one === document.activeElement")
    press("Tab")
    press("Enter")
    dialog.wait_for(state="detached")
    page.get_by_text("No keys yet").wait_for()
    assert stand("GET", "/v1/me", key=secret).status == 401


def test_customers_are_made_and_topped_up_and_the_audit_says_so(stand: Stand, page: Page) -> None:
    sign_in(page, stand.url)
    see(page, "customers")
    press = page.keyboard.press
    page.get_by_role("button", name="New customer").click()
    page.locator("dialog input:focus").wait_for()
    page.keyboard.type("acme")
    press("Enter")
    page.get_by_role("link", name="acme").click()
    page.get_by_role("button", name="New project").click()
    page.locator("dialog input:focus").wait_for()
    page.keyboard.type("web")
    page.get_by_text("More limits").click()
    page.locator("[name=prepaid]").select_option("true")
    page.get_by_role("button", name="Create project").click()
    page.get_by_role("dialog").wait_for(state="detached")
    choose(page, "Actions for project web", "Top up")
    for amount, reason in (("0", "a card"), ("12.5", "a card")):
        page.locator("[name=usd]").fill(amount)
        page.locator("[name=reason]").fill(reason)
        press("Enter")
        if amount == "0":
            page.locator("dialog .notice").wait_for()
            assert page.locator("[aria-invalid]").get_attribute("name") == "usd"
    page.get_by_text("prepaid, $12.50 left").wait_for()
    _, _, acme, web = stand.get("/account/list")["accounts"]
    assert (web["organization_id"], web["prepaid"], web["credit"]) == (acme["id"], True, 12.5)
    see(page, "keys")
    page.get_by_role("button", name="New key").click()
    page.locator("dialog input:focus").wait_for()
    page.keyboard.type("anna")
    page.locator("[name=team_id]").select_option(label="web (acme)")
    page.get_by_text("More limits").click()
    page.locator("[name=on_store_outage]").select_option("fail_open")
    page.locator("[name=cost_in_answers]").select_option("always")
    page.get_by_role("button", name="Create key").click()
    page.locator("#secret").wait_for()
    press("Escape")
    (key,) = stand.get("/key/list")["keys"]
    told = see(page, f"keys/{key['token']}")
    assert "responses contain their cost" in told
    assert "accepts requests if budgets cannot be checked" in told
    assert (key["team_id"], key["on_store_outage"], key["on_exhausted"]) == (web["id"], "fail_open", "finish")
    assert key["cost_in_answers"] is True
    told = see(page, "audit")
    done = ("key.generate", "credit.add", "usd: 12.5", "account.create-project", "account.create-organization")
    assert [word for word in done if word not in told] == []
    assert "Refused" in told


def test_a_budget_that_is_nearly_spent_needs_attention(stand: Stand, page: Page) -> None:
    for number, spent in ((1, 9), (2, 3)):
        stand.key(f"key-{number}", alias=f"key {number}", limits=Limits(budget_nusd=10**10))
        stand.budgets.gates.append(CounterState(f"key-{number}", 0.0, spent * 10**9, 0, 0, 0))
    settle(stand.engine, entry(1), node=None)
    sign_in(page, stand.url)
    page.get_by_role("link", name="1 budget with 80 % or more spent").click()
    heading(page, "Budgets")
    page.get_by_text("Above 80 %").wait_for()
    assert page.locator("tbody tr").count() == 1
    page.locator("[name=status]").select_option("")
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    assert "key 2" in see(page, "budgets?q=KEY-2")


def test_limits_and_grants_are_made_and_ended(stand: Stand, page: Page) -> None:
    stand.post("/key/generate", {"key_alias": "anna", "max_budget": 3})
    sign_in(page, stand.url)
    assert "$3.00" in see(page, "budgets")  # before its first use, too
    choose(page, "Actions for the budget of anna", "Raise for a time")
    page.get_by_label("By, USD").fill("2")
    page.keyboard.press("Enter")
    page.get_by_text("The budget of anna is raised").wait_for()
    assert stand.get("/key/list")["keys"][0]["budget_raise"]["usd"] == 2
    see(page, "budgets?show=rules")
    page.get_by_role("button", name="New limit").click()
    page.get_by_label("Name", exact=True).fill("each user")
    page.get_by_label("Of the key").fill("nobody")
    page.get_by_label("Budget, USD").fill("0.5")
    page.get_by_role("button", name="Create limit").click()
    page.locator("dialog .notice").wait_for()
    page.get_by_label("Of the key").fill("anna")
    page.get_by_text("More limits").click()
    page.get_by_label("Requests in each period").fill("10")
    page.get_by_role("button", name="Create limit").click()
    page.get_by_text("$0.50 / 30 days").wait_for()
    (made,) = stand.get("/limit/list")["limits"]
    assert (made["split_by"], made["max_budget"], made["name"]) == (["end_user"], 0.5, "each user")
    choose(page, "Actions for each user", "Edit")
    page.get_by_label("Requests in each period").fill("20")
    page.keyboard.press("Enter")
    page.get_by_text("20 requests in each period").wait_for()
    choose(page, "Actions for each user", "Delete")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_text("No limits by rule yet").wait_for()
    see(page, "keys")
    choose(page, "Actions for anna", "Grant credit")
    page.get_by_label("Name", exact=True).fill("trial")
    page.get_by_label("Amount, USD").fill("5")
    page.get_by_label("Expires").fill("14d")
    page.keyboard.press("Enter")
    page.get_by_text("trial is granted").wait_for()
    assert "$5.00" in see(page, "budgets?show=grants")
    choose(page, "Actions for trial", "Revoke")
    page.get_by_role("button", name="Revoke", exact=True).click()
    page.get_by_text("trial is revoked").wait_for()
    assert stand.get("/grant/list")["grants"][0]["revoked_at"]


def test_a_link_shows_what_its_sender_saw(stand: Stand, page: Page) -> None:
    """Before: an unknown page was Live, 13 days stood under "7 days", and "back" lost the rows and the place."""
    settle(stand.engine, *(entry(number) for number in range(120)), node=None)
    sign_in(page, stand.url)
    for path in ("nonsense", "requests/a/b", "requests/%E0%A4%A"):
        page.evaluate(f"location.hash = '#/{path}'")
        heading(page, "Page not found")
    see(page, "usage?by=pony&period=13d&tz=Mars/Olympus&metric=cost")
    chips = page.locator(".chip.warn").all_inner_texts()
    assert chips == ["Ignored: by=pony", "Ignored: period=13d", "Ignored: tz=Mars/Olympus"]
    assert page.locator("[aria-pressed=true]").inner_text() == "Cost"
    see(page, "requests?model=tera-large&tz=Asia/Tokyo")
    page.get_by_role("button", name="Show older").click()
    until(page, "document.querySelectorAll('tbody tr').length === 100")
    row = page.locator("tbody tr").nth(80)
    row.scroll_into_view_if_needed()
    place = page.evaluate("scrollY")
    assert place > 0
    row.locator("a").click()
    heading(page, "Request")
    page.get_by_role("link", name="← Requests").click()
    heading(page, "Requests")
    until(page, "document.querySelectorAll('tbody tr').length === 100")
    assert page.evaluate("scrollY") == place
    assert "Model: tera-large" in page.inner_text(".chip")
    assert page.locator("[name=tz]").input_value() == "Asia/Tokyo"


def test_an_error_stands_where_the_rows_would_be(stand: Stand, page: Page) -> None:
    sign_in(page, stand.url)
    page.context.route(
        "**/v1/exchanges?*", lambda route: route.fulfill(status=400, body='{"error": {"message": "No."}}')
    )
    page.evaluate("location.hash = '#/requests'")
    page.locator(".view .notice.bad").wait_for()
    page.context.unroute("**/v1/exchanges?*")
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("No requests in this period").wait_for()


def test_a_streams_line_stays_while_its_numbers_grow(stand: Stand, page: Page) -> None:
    one, two = stand.inside.streams = [running(1), running(2)]
    sign_in(page, stand.url)
    see(page, "live")
    page.set_viewport_size({"width": 1_400, "height": 900})
    link = page.locator("a.row-link").first
    link.focus()
    stand.inside.streams = [running(0), replace(one, completion_tokens=4_000), replace(two, completion_tokens=5_000)]
    page.get_by_text("5,000").wait_for()
    assert page.evaluate("document.activeElement.className") == "row-link"
    far = running(4, node="c0ffee", completion_tokens=6_000)
    stand.inside.remote_coverage, stand.inside.streams = "complete", [two, far]
    page.get_by_text("6,000").wait_for()
    stand.inside.remote_coverage, stand.inside.streams = "unknown", []
    page.get_by_text("No running streams").wait_for()
    assert page.locator(f".plain-list a[href$='{two.exchange_id}']").count() == 1
    assert page.locator(f".plain-list a[href$='{far.exchange_id}']").count() == 0, "it may only be out of sight"


def test_a_stream_is_watched_and_then_explained(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the whole of a proxy that serves."""
    monkeypatch.setenv("ADMIN", SECRET)
    one = tokenweir(admin={"port": 0, "secret": "${ADMIN}"})
    provider.script("long", Shape("openai", tokens=2_000, pace_ms=10))
    body: dict[str, Any] = {"model": "long", "stream": True, "messages": [{"role": "user", "content": "nobody's"}]}
    sign_in(page, one.console_url)
    see(page, "live")
    page.get_by_text("No running streams").wait_for()
    stream = opened(one.url, "/v1/chat/completions", one.key(), body)
    grown = "Number(document.querySelector('.growing')?.textContent) > %d"
    until(page, grown % 0)
    first = int(page.inner_text(".growing"))
    until(page, grown % first)
    page.locator("a.row-link").click()
    page.get_by_text("In progress").wait_for()
    assert page.get_by_role("button", name="Stop the stream").count() == 1
    stream.close()
    page.get_by_text("The client disconnected before the end.").wait_for()
    assert "How it was estimated" in page.inner_text("main")
    (booked,) = one.entries(1)
    charge = f"${booked['charge_usd']}"
    assert page.inner_text(".big") == charge
    assert page.inner_text("tfoot td") == charge
    assert "nobody's" not in page.content()


def test_a_stream_is_stopped_from_the_list_and_from_its_page(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN", SECRET)
    one = tokenweir(admin={"port": 0, "secret": "${ADMIN}"})
    provider.script("long", Shape("openai", tokens=2_000, pace_ms=10))
    body: dict[str, Any] = {"model": "long", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    sign_in(page, one.console_url)
    stream = opened(one.url, "/v1/chat/completions", one.key(), body)
    see(page, "live")
    page.locator("a.row-link").wait_for()
    choose(page, "Actions for long", "Stop")
    page.get_by_role("dialog").get_by_role("button", name="Stop the stream").click()
    page.get_by_text("The stream is stopped.").wait_for()
    page.get_by_text("No running streams").wait_for()
    stream.close()
    stream = opened(one.url, "/v1/chat/completions", one.key("second"), body)
    see(page, f"requests/{stream.headers['x-tokenweir-exchange']}")
    page.get_by_role("button", name="Stop the stream").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the stream").click()
    page.get_by_text("An operator stopped the stream.").wait_for()
    stream.close()
    booked = one.entries(2)
    assert page.inner_text(".big") in {f"${entry['charge_usd']}" for entry in booked}
    assert see(page, "requests").count("Stopped by an operator") == 2


@pytest.mark.parametrize(
    ("usd", "brief", "exact", "fixed"),
    [
        ("0", "$0", "$0", "$0"),
        ("0.000000001", "$0.000000001", "$0.000000001", "<$0.0001"),
        ("0.00168053", "$0.00168", "$0.00168053", "$0.0017"),
        ("2.59e-05", "$0.0000259", "$0.0000259", "<$0.0001"),
        ("0.999999999", "$1.00", "$0.999999999", "$1.0000"),
        ("4.99951", "$5.00", "$4.99951", "$4.9995"),
        ("-0.1", "−$0.10", "−$0.10", "−$0.1000"),
        ("12345678901.23", "$12,345,678,901.23", "$12,345,678,901.23", "$12,345,678,901.2300"),
    ],
)
def test_money_never_looks_like_nothing(
    usd: str, brief: str, exact: str, fixed: str, words: Callable[[str], list[str]]
) -> None:
    assert words(usd) == [brief, exact, fixed]


@pytest.fixture(scope="module")
def words(browser: Browser) -> Iterator[Callable[[str], list[str]]]:
    """formatting.js, asked in the browser."""
    module = (FOLDER / "formatting.js").read_text()
    said = "window.said = (usd) => [brief(nusd(usd)), exact(nusd(usd)), fixed(nusd(usd), 4)]"
    tab = browser.new_page()
    tab.add_script_tag(content=f"{module}; {said}", type="module")
    until(tab, "!!window.said")
    yield lambda usd: tab.evaluate("(usd) => window.said(usd)", usd)
    tab.close()
