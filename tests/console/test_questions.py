"""What an operator is asked, answered in the console of `tokenweir demo --full`, each in at most six steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING

import pytest

from tests.console.browsing import PATIENCE_MS, Demo, Operator, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.process]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    made = Demo()
    yield made
    made.end()


@pytest.fixture
def operator(browser: Browser, demo: Demo) -> Iterator[Operator]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    sign_in(page, demo.url, demo.secret)
    yield Operator(page)
    page.close()


def usd(text: str, decimals: int) -> str:
    """`11.51235445`: `11.5124`"""
    return f"{float(text):.{decimals}f}"


def test_why_a_customer_pays_more(operator: Operator, demo: Demo) -> None:
    found = re.fullmatch(r"(\S+) → (\S+) USD: price \+(\S+), volume and mix \+\S+", demo.answer("Why does Contoso"))
    assert found is not None
    before, after, price = found.groups()
    operator.click("Usage")
    operator.choose("organization_id", "Contoso Health")
    operator.check(re.compile("Compare with"))
    operator.click("Explain change", "button")
    operator.sees(f"${usd(before, 4)}", f"${usd(after, 4)}", f"+${usd(price, 4)}")


def test_where_a_response_is(operator: Operator, demo: Demo) -> None:
    exchange_id = demo.answer("Where is response").partition(":")[0]
    operator.search("chatcmpl-Contoso77of154")
    operator.click("tera-large", "cell")
    operator.sees("77", "154")
    assert exchange_id in operator.page.url


def test_which_keys_are_nearly_spent(operator: Operator, demo: Demo) -> None:
    shares = dict(re.findall(r"(\S+) (\d+) %", demo.answer("Which keys are nearly spent")))
    assert len(shares) == 3
    operator.click("Budgets")
    operator.sees(*shares, *(f"{share} %" for share in shares.values()))
    rows = operator.page.get_by_role("row").all_inner_texts()[1:4]
    assert {alias for alias in shares if any(alias in row for row in rows)} == shares.keys(), "the fullest come first"


def test_who_changed_a_price(operator: Operator, demo: Demo) -> None:
    operator.click("Audit")
    operator.sees("prices.change", "tera-large", demo.answer("Who changed the price"), "3 → 3.6")


def test_which_provider_fails(operator: Operator, demo: Demo) -> None:
    provider, failed = re.findall(r"^(\w+): (\d+) requests failed", demo.answer("Which provider fails"))[0]
    operator.click("Providers")
    operator.click("Last 7 days", "button")
    operator.sees(provider, failed)
    first = operator.page.get_by_role("row").all_inner_texts()[1]
    assert (provider in first, failed in first.split()) == (True, True), first


def test_the_statement_of_last_month(operator: Operator, demo: Demo) -> None:
    question = next(line for line in demo.printed.splitlines() if "statement of" in line)
    year, month = re.findall(r"(\d{4})-(\d\d)", question)[0]
    usd_of_month = usd(demo.answer("What is on Contoso's statement").split()[0], 2)
    operator.click("Statements")
    operator.choose("month", f"Month: {date(int(year), int(month), 1):%B %Y}, final")
    operator.sees(f"${usd_of_month}")
    operator.page.get_by_role("button", name=re.compile("Contoso")).click()
    operator.steps += 2
    with operator.page.expect_download() as begun:
        operator.page.get_by_role("menuitem", name="Download PDF").click()
    pdf = begun.value.path().read_bytes()
    assert (pdf[:5], begun.value.suggested_filename.endswith(".pdf")) == (b"%PDF-", True)
    operator.sees()
