"""What an operator does with money on the page: months are closed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import PHONE, see, sign_in, width
from tests.console.entries import MONTH, use_september
from tests.console.stand import READER, Stand

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
