"""What an operator does with money on the page: months are closed, past requests are
repriced, statements are sent."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import PHONE, choose, see, sign_in, width
from tests.console.entries import MONTH, YESTERDAY, entry, use_september
from tests.console.mailing import CUSTOMER, mailing
from tests.console.stand import READER, Stand
from tests.ledger.priced_entries import settle

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.io


def test_a_month_is_closed_after_its_checks(stand: Stand, page: Page) -> None:
    """Who may only read sees the checks."""
    use_september(stand)
    sign_in(page, stand.url, READER)
    assert "September 2026 is not closed" in see(page, f"statements?month={MONTH}")
    page.get_by_role("button", name="Check September 2026").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Every request of the month is settled.").wait_for()
    assert dialog.get_by_role("button").all_inner_texts() == ["Close"]
    dialog.get_by_role("button").click()
    page.context.clear_cookies()
    page.reload()
    sign_in(page, f"{stand.url}#/statements?month={MONTH}")
    page.get_by_role("button", name="Check and close September 2026").click()
    assert "Without a price, and so without a charge: 1 request." in dialog.inner_text()
    assert width(page) == PHONE["width"]
    dialog.get_by_role("button", name="Close September 2026").click()
    page.get_by_text("Closed: September 2026.").wait_for()
    page.get_by_role("cell", name="Final").wait_for()
    assert page.get_by_role("button", name=re.compile("Check")).count() == 0


def test_past_requests_are_repriced_after_a_preview(stand: Stand, page: Page) -> None:
    """Several models at once, also one that nobody has used; who may only read sees the preview."""
    stand.key("key-1")
    settle(stand.engine, entry(0), entry(1), entry(2, model="tera-small"), entry(3, model="tera-other"), node=None)
    dialog = page.get_by_role("dialog")

    def preview() -> None:
        page.get_by_role("button", name="Reprice past requests").click()
        dialog.get_by_label("Models", exact=True).select_option([])
        dialog.get_by_role("button", name="Preview").click()
        dialog.get_by_text("Choose at least one model.").wait_for()
        dialog.get_by_label("Models", exact=True).select_option(["tera-large"])
        dialog.get_by_label("Other models").fill("tera-small, tera-gone")
        dialog.get_by_label("First day").fill(f"{datetime.fromtimestamp(YESTERDAY, UTC):%Y-%m-%d}")
        dialog.get_by_label("Input, USD per million", exact=True).fill("0.333333333")
        dialog.get_by_role("button", name="Preview").click()
        dialog.get_by_text("A new price needs input and output.").wait_for()
        dialog.get_by_label("Output, USD per million").fill("0.7")
        assert width(page) == PHONE["width"]
        dialog.get_by_role("button", name="Preview").click()
        dialog.get_by_text("1 customer, 3 requests").wait_for()

    sign_in(page, stand.url, READER)
    see(page, "models")
    preview()
    difference = dialog.locator("strong .figure").get_attribute("data-exact")
    assert dialog.get_by_role("button").all_inner_texts() == ["Close"]
    page.context.clear_cookies()
    page.reload()
    sign_in(page, f"{stand.url}#/models")
    see(page, "models")
    preview()
    assert "input $0.333333333, output $0.70 per million" in dialog.inner_text()
    assert width(page) == PHONE["width"]
    dialog.get_by_role("button", name="Apply").click()
    page.get_by_text(f"3 requests corrected: {difference}.").wait_for()
    see(page, "models/tera-small")
    preview()
    dialog.get_by_text("Nothing would change.").wait_for()


def test_a_statement_is_sent_after_a_look_at_it(page: Page, tmp_path: Path) -> None:
    """A second sending says that there was a first; a rejection stands in the dialog."""
    with mailing(tmp_path) as (stand, server):
        sign_in(page, f"{stand.url}#/statements?month={MONTH}")
        dialog = page.get_by_role("dialog")
        see(page, f"statements?month={MONTH}")
        choose(page, "Statement of default", "Send by e-mail")
        dialog.get_by_text("$12.73", exact=True).wait_for()
        assert dialog.get_by_label("To").input_value() == CUSTOMER
        assert width(page) == PHONE["width"]
        server.answers["RCPT"] = "550 no such user"
        dialog.get_by_role("button", name="Send").click()
        dialog.get_by_text(f"rejected the recipient {CUSTOMER}: 550 no such user").wait_for()
        server.answers = {}
        stand.post("/v1/statements/send", {"scope_id": "org_default", "month": MONTH, "to": "ben@acme.example"})
        dialog.get_by_role("button", name="Send").click()
        dialog.get_by_text("Sent to ben@acme.example, ").wait_for()
        dialog.get_by_role("button", name="Send again").click()
        page.get_by_text(f"Sent to {CUSTOMER}.").wait_for()
        page.get_by_role("cell", name=re.compile("^Sent ")).wait_for()
        choose(page, "Statement of default", "Send by e-mail")
        dialog.get_by_text(f"Sent to {CUSTOMER}, ").wait_for()
        dialog.get_by_label("To").fill("cfo@acme.example")
        dialog.get_by_role("button", name="Send again").click()
        page.get_by_text("Sent to cfo@acme.example.").wait_for()
        assert [one.recipients[0] for one in server.received] == ["ben@acme.example", CUSTOMER, "cfo@acme.example"]
